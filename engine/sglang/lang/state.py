"""What a program's function works with: the state `s`, and the group that a fork makes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partialmethod
from typing import Any

from sglang.lang.chat_template import Message
from sglang.lang.executor import StreamExecutor
from sglang.lang.ir import (
    SglConcateAndAppend,
    SglExpr,
    SglExprList,
    SglRoleBegin,
    SglRoleEnd,
    SglVarScopeBegin,
    SglVarScopeEnd,
    as_expression,
    turn_of,
)

JOIN_MODES = ("gather_variable", "concate_and_append")


class ProgramState:
    """Text and variables of a running program. `s += …` appends; `s["name"]` reads."""

    def __init__(self, stream_executor: StreamExecutor) -> None:
        self.stream_executor = stream_executor
        self.ret_value: Any = None  # what the program's function returned

    def __iadd__(self, other: Any) -> "ProgramState":
        self.stream_executor.submit(as_expression(other))
        return self

    @contextmanager
    def var_scope(self, name: str) -> Iterator[None]:
        """Makes a variable of the text that is appended inside."""
        self.stream_executor.submit(SglVarScopeBegin(name))
        yield
        self.stream_executor.submit(SglVarScopeEnd(name))

    def fork(
        self, size: int = 1, position_ids_offset: list[int] | None = None
    ) -> "ProgramStateGroup":
        """Branches that start with a copy of everything, and do not see each other."""
        branches = self.stream_executor.fork(size, position_ids_offset)
        return ProgramStateGroup([ProgramState(branch) for branch in branches], self)

    @contextmanager
    def copy(self, position_ids_offset: list[int] | None = None) -> Iterator["ProgramState"]:
        """A branch for the time of a `with` block."""
        group = self.fork(1, position_ids_offset)
        try:
            yield group[0]
        finally:
            group.join()

    def text(self) -> str:
        """The whole text; waits for what was appended."""
        return self.stream_executor.text()

    def messages(self) -> list[Message]:
        """The turns that ended; waits for what was appended."""
        return self.stream_executor.messages()

    def sync(self) -> None:
        """Waits for what was appended. Does not raise: see `error`."""
        self.stream_executor.sync()

    def error(self) -> BaseException | None:
        """What ended the program early, or None."""
        return self.stream_executor.error()

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """The text, or a variable's, piece by piece. Without `stream=True` it comes whole.

        Ends by raising the error that broke the text off, if there was one.
        """
        if self.stream_executor.stream:
            yield from self.stream_executor.iterate(var_name)
        elif var_name is not None:
            yield self.get_var(var_name)
        else:
            yield self.text()
            if (error := self.error()) is not None:
                raise error

    async def text_async_iter(
        self, var_name: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[Any]:
        """`text_iter` for asyncio; with `return_meta_data`, pairs of piece and meta information."""
        if return_meta_data and var_name is None:
            raise ValueError("return_meta_data needs var_name: only answers have meta information")
        pieces = self.text_iter(var_name)
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            if return_meta_data:
                yield piece, self.stream_executor.results.meta.get(var_name or "", {})
            else:
                yield piece

    def get_var(self, name: str) -> Any:
        """Waits for the variable; raises the error that kept it from coming."""
        return self.stream_executor.get_var(name)

    def set_var(self, name: str, value: Any) -> None:
        self.stream_executor.set_var(name, value)

    def get_meta_info(self, name: str) -> Any:
        """What the backend told about an answer: token counts, logprobs, why it ended."""
        return self.stream_executor.get_meta_info(name)

    def __getitem__(self, name: str) -> Any:
        return self.get_var(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self.set_var(name, value)

    def __contains__(self, name: str) -> bool:
        return self.stream_executor.results.has(name)

    def __repr__(self) -> str:
        return f"ProgramState({self.text()})"

    def _role(self, role: str, expr: Any = None) -> "AbstractContextManager[None] | SglExprList":
        """A turn: as an expression to append, or without `expr` for a `with` block."""
        return _turn(self, role) if expr is None else turn_of(role, expr)

    system = partialmethod(_role, "system")
    user = partialmethod(_role, "user")
    assistant = partialmethod(_role, "assistant")


@contextmanager
def _turn(state: ProgramState, role: str) -> Iterator[None]:
    state.stream_executor.submit(SglRoleBegin(role))
    yield
    state.stream_executor.submit(SglRoleEnd(role))


class ProgramStateGroup:
    """The branches of a fork."""

    def __init__(self, states: Sequence[ProgramState], src_state: ProgramState) -> None:
        self.states = list(states)
        self.src_state = src_state

    def join(self, mode: str = "gather_variable") -> None:
        """Waits for the branches and brings them back.

        `gather_variable`: each variable that is new in the branches becomes a list in the parent,
        in the order of the branches. `concate_and_append`: the parent's text goes on with what
        each branch added. The branches can still be read, no longer be appended to. Raises the
        first error of a branch.
        """
        if mode not in JOIN_MODES:
            raise ValueError(f"unknown join mode {mode!r}; allowed: {', '.join(JOIN_MODES)}")
        if mode == "concate_and_append":
            self.src_state += SglConcateAndAppend(self.states)
            self.src_state.sync()
        for state in self.states:
            state.stream_executor.end()
            state.sync()
        errors = [error for state in self.states if (error := state.error()) is not None]
        if errors:
            raise errors[0]
        if mode == "gather_variable":
            self._gather()

    def __getitem__(self, index: int) -> ProgramState:
        return self.states[index]

    def __setitem__(self, index: int, value: ProgramState) -> None:
        # Python writes back what `forks[i] += …` returned.
        if value is not self.states[index]:
            raise ValueError("a branch cannot be replaced; append to it with +=")

    def __len__(self) -> int:
        return len(self.states)

    def __iter__(self) -> Iterator[ProgramState]:
        return iter(self.states)

    def __iadd__(
        self, other: "Callable[[int], Any] | SglExpr | Sequence[Any]"
    ) -> "ProgramStateGroup":
        """The same expression for all, one for each, or a function of the branch's number."""
        if isinstance(other, SglExpr):
            values: list[Any] = [other] * len(self.states)
        elif isinstance(other, list | tuple):
            values = list(other)
        elif callable(other):
            values = [other(index) for index in range(len(self.states))]
        else:
            raise ValueError(
                f"cannot append {other!r} to a group; allowed: an expression, a list with one "
                "entry per branch, or a function of the branch's number"
            )
        if len(values) != len(self.states):
            raise ValueError(f"the list has {len(values)} entries for {len(self.states)} branches")
        for state, value in zip(self.states, values, strict=True):
            state += value
        return self

    def _gather(self) -> None:
        parent = self.src_state.stream_executor
        known = set(parent.variables)
        gathered: dict[str, list[Any]] = {}
        for state in self.states:
            for name, value in state.stream_executor.variables.items():
                if name not in known:
                    gathered.setdefault(name, []).append(value)
        for name, values in gathered.items():
            parent.set_var(name, values)
