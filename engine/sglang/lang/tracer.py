"""What a program appends, found out without running it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar, Token
from functools import partialmethod
from typing import Any

from sglang.lang.backend.base_backend import BaseBackend
from sglang.lang.chat_template import get_chat_template
from sglang.lang.ir import (
    SglArgument,
    SglConcateAndAppend,
    SglConstantText,
    SglExpr,
    SglFork,
    SglFunction,
    SglRoleBegin,
    SglRoleEnd,
    SglVariable,
    SglVarScopeBegin,
    SglVarScopeEnd,
    as_expression,
    flatten,
    names_in,
    refuse_offset,
    turn_of,
)
from sglang.lang.transcript import Transcript


class StopTracing(Exception):
    """The program asks for something that only a run can tell."""


class TracerProgramState:
    """Stands for a state: collects what is appended, in `nodes`."""

    def __init__(self, backend: BaseBackend | None, arguments: Mapping[str, Any]) -> None:
        self.backend = backend
        self.arguments = arguments
        self.nodes: list[SglExpr] = []
        self.variables: dict[str, SglVariable] = {}
        self.ret_value: Any = None

    def __iadd__(self, other: Any) -> "TracerProgramState":
        for node in flatten(as_expression(other)):
            self.nodes.append(node)
            for name in names_in(node):
                self.variables[name] = SglVariable(name)
        return self

    def __getitem__(self, name: str) -> SglVariable:
        if name not in self.variables:
            raise KeyError(
                f"no variable {name!r}; there are: {', '.join(self.variables) or 'none'}"
            )
        return self.variables[name]

    get_var = __getitem__

    def __setitem__(self, name: str, value: Any) -> None:
        self.variables[name] = SglVariable(name)

    set_var = __setitem__

    def __contains__(self, name: str) -> bool:
        return name in self.variables

    def fork(
        self, size: int | SglExpr = 1, position_ids_offset: list[int] | None = None
    ) -> "TracerProgramStateGroup":
        refuse_offset(position_ids_offset)
        if isinstance(size, SglExpr):
            raise StopTracing("the number of branches depends on an argument")
        branches = [TracerProgramState(self.backend, self.arguments) for _ in range(size)]
        for branch in branches:
            branch.variables.update(self.variables)
        self.nodes.append(SglFork(branches))
        return TracerProgramStateGroup(branches, self)

    @contextmanager
    def copy(self, position_ids_offset: list[int] | None = None) -> Iterator["TracerProgramState"]:
        yield self.fork(1, position_ids_offset)[0]

    @contextmanager
    def var_scope(self, name: str) -> Iterator[None]:
        self += SglVarScopeBegin(name)
        yield
        self += SglVarScopeEnd(name)

    def sync(self) -> None:
        """Nothing runs."""

    def __getattr__(self, name: str) -> Any:
        raise StopTracing(f"{name}() is known when the program runs")

    def constant_prefix(self) -> str:
        """The text before anything that arguments or the model decide."""
        template = (
            self.backend.get_chat_template() if self.backend else get_chat_template("default")
        )
        transcript = Transcript(template)
        for node in self.nodes:
            if isinstance(node, SglConstantText):
                transcript.text_ += node.value
            elif isinstance(node, SglRoleBegin):
                transcript.open_turn(node.role)
            elif isinstance(node, SglRoleEnd):
                transcript.close_turn(node.role)
            elif not isinstance(node, SglVarScopeBegin | SglVarScopeEnd):
                break
        return transcript.text_

    def _role(self, role: str, expr: Any = None) -> Any:
        return _turn(self, role) if expr is None else turn_of(role, expr)

    system = partialmethod(_role, "system")
    user = partialmethod(_role, "user")
    assistant = partialmethod(_role, "assistant")


@contextmanager
def _turn(state: TracerProgramState, role: str) -> Iterator[None]:
    state += SglRoleBegin(role)
    yield
    state += SglRoleEnd(role)


class TracerProgramStateGroup:
    """The branches of a traced fork."""

    def __init__(self, states: list[TracerProgramState], src_state: TracerProgramState) -> None:
        self.states = states
        self.src_state = src_state

    def join(self, mode: str = "gather_variable") -> None:
        if mode == "concate_and_append":
            self.src_state += SglConcateAndAppend(self.states)
        for state in self.states:
            for name, variable in state.variables.items():
                self.src_state.variables.setdefault(name, variable)

    def __getitem__(self, index: int) -> TracerProgramState:
        return self.states[index]

    def __setitem__(self, index: int, value: TracerProgramState) -> None:
        assert value is self.states[index], "Python writes back what += returned"

    def __len__(self) -> int:
        return len(self.states)

    def __iter__(self) -> Iterator[TracerProgramState]:
        return iter(self.states)

    def __iadd__(self, other: Any) -> "TracerProgramStateGroup":
        for index, state in enumerate(self.states):
            if isinstance(other, list | tuple):
                state += other[index]
            else:
                state += other if isinstance(other, SglExpr) else other(index)
        return self


class TracingScope:
    """While it is entered, calling a program traces it."""

    _current: ContextVar["TracerProgramState | None"] = ContextVar("tracer", default=None)

    def __init__(self, state: TracerProgramState) -> None:
        self._state = state
        self._token: Token[TracerProgramState | None] | None = None

    @classmethod
    def current(cls) -> "TracerProgramState | None":
        return cls._current.get()

    def __enter__(self) -> None:
        self._token = self._current.set(self._state)

    def __exit__(self, *exc_info: object) -> None:
        assert self._token is not None
        self._current.reset(self._token)


def trace_program(
    program: SglFunction, arguments: Mapping[str, Any], backend: BaseBackend | None
) -> TracerProgramState:
    """Calls the program's function with a state that only collects.

    Parameters that are neither given nor bound are placeholders, unless they have a default. Raises
    StopTracing, or whatever the function raises, where the program needs a real answer.
    """
    state, named = _prepare(program, arguments, backend)
    with TracingScope(state):
        state.ret_value = program.func(state, **named)
    return state


def extract_prefix_by_tracing(
    program: SglFunction, backend: BaseBackend, arguments: Mapping[str, Any]
) -> str:
    """The text that all runs of the program with these arguments begin with; may be empty."""
    state, named = _prepare(program, arguments, backend)
    # Placeholders break any code; what was appended before is what counts.
    with TracingScope(state), suppress(Exception):
        program.func(state, **named)
    return state.constant_prefix()


def _prepare(
    program: SglFunction, arguments: Mapping[str, Any], backend: BaseBackend | None
) -> tuple[TracerProgramState, dict[str, Any]]:
    given = {**program.bind_arguments, **arguments}
    named = {
        name: given[name] if name in given else SglArgument(name)
        for name in program.arg_names
        if name in given or name not in program.arg_defaults
    }
    return TracerProgramState(backend, named), named
