"""What a program is made of: expressions that a state appends, and the program itself."""

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sglang.lang.choices import ChoicesSamplingMethod
from sglang.lang.global_config import global_config

if TYPE_CHECKING:
    from sglang.lang.backend.base_backend import BaseBackend
    from sglang.lang.state import ProgramState
    from sglang.lang.tracer import TracerProgramState

# What `gen(dtype=…)` lets a model write. The blanks at the end let it reach its stop string.
REGEX_INT = r"[-+]?[0-9]+[ \n]*"
REGEX_FLOAT = r"[-+]?[0-9]*\.?[0-9]+[ \n]*"
REGEX_BOOL = r"(True|False)"
REGEX_STR = r"\"[\w\d\s]*\""

# Options of `run` and `run_batch` that are no sampling parameters.
_CALL_OPTIONS = (
    "stream",
    "backend",
    "use_thread",
    "num_threads",
    "progress_bar",
    "generator_style",
)
# Sampling parameters that only `gen` has.
_GEN_ONLY = ("min_new_tokens", "dtype", "regex", "json_schema")


@dataclasses.dataclass(frozen=True)
class SglSamplingParams:
    """How one answer is sampled. The defaults are those of `run`."""

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    n: int = 1
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    stop_regex: str | Sequence[str] | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    ignore_eos: bool = False
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    return_text_in_logprobs: bool | None = None
    dtype: type | str | None = None
    regex: str | None = None
    json_schema: str | None = None

    def stops(self) -> list[str]:
        """The stop strings as a list."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    def changed(self) -> dict[str, Any]:
        """The parameters that differ from the defaults."""
        pairs = ((f.name, getattr(self, f.name), f.default) for f in dataclasses.fields(self))
        return {name: value for name, value, default in pairs if value != default}

    def check_supported(self, provider: str, *names: str) -> None:
        """Refuses parameters that were set and that the provider's API does not have."""
        odd = {name: value for name, value in self.changed().items() if name not in names}
        if odd:
            given = ", ".join(f"{name}={value!r}" for name, value in odd.items())
            raise ValueError(
                f"{provider} has no {given}; allowed: {', '.join(names)}. Leave it out, or use a "
                "RuntimeEndpoint"
            )


RUN_OPTIONS = tuple(
    field.name for field in dataclasses.fields(SglSamplingParams) if field.name not in _GEN_ONLY
)


class SglExpr:
    """Something that `s += …` takes. Expressions add up, with texts too."""

    def __add__(self, other: "SglExpr | str") -> "SglExprList":
        return SglExprList([*_parts(self), *_parts(other)])

    def __radd__(self, other: "SglExpr | str") -> "SglExprList":
        return SglExprList([*_parts(other), *_parts(self)])


def _parts(value: "SglExpr | str") -> "list[SglExpr]":
    if isinstance(value, str):
        return [SglConstantText(value)]
    if isinstance(value, SglExprList):
        return value.expr_list
    if isinstance(value, SglExpr):
        return [value]
    raise TypeError(f"can only add text and expressions to an expression, got {value!r}")


def as_expression(value: object) -> SglExpr:
    """What a user appended, as one expression. Raises for anything that is none."""
    if value is None:
        raise ValueError("Tried to append None to state.")
    if isinstance(value, str):
        return SglConstantText(value)
    if isinstance(value, SglExpr):
        return value
    if isinstance(value, list | tuple):
        return SglExprList([as_expression(part) for part in value])
    raise TypeError(
        f"cannot append {value!r} of type {type(value).__name__}; allowed: text, expressions such "
        "as sgl.gen(…), and lists of them. Write str(…) for a number"
    )


def turn_of(role: str, expr: object) -> "SglExprList":
    """An expression as the turn of a role."""
    return SglExprList([SglRoleBegin(role), as_expression(expr), SglRoleEnd(role)])


def flatten(expr: SglExpr) -> Iterator[SglExpr]:
    """The expressions in it that are no lists, in order."""
    if isinstance(expr, SglExprList):
        for part in expr.expr_list:
            yield from flatten(part)
    else:
        yield expr


def names_in(expr: SglExpr) -> Iterator[str]:
    """The variables that the expression will set."""
    for part in flatten(expr):
        if isinstance(part, SglSeparateReasoning):
            yield from names_in(part.expr)
            answers = [inner for inner in flatten(part.expr) if isinstance(inner, SglGen)]
            yield from (reasoning_name(answer.name) for answer in answers if answer.name)
        elif isinstance(part, SglGen | SglSelect | SglVarScopeEnd) and part.name is not None:
            yield part.name


def reasoning_name(name: str) -> str:
    return f"{name}_reasoning_content"


@dataclasses.dataclass(eq=False)
class SglExprList(SglExpr):
    expr_list: list[SglExpr]


@dataclasses.dataclass(eq=False)
class SglConstantText(SglExpr):
    value: str


@dataclasses.dataclass(eq=False)
class _Placeholder(SglExpr):
    """A value that is not known while a program is traced. Its text cannot be asked for."""

    name: str

    def __format__(self, spec: str) -> str:
        raise TypeError(f"{self.name} is put into a text, which cannot be traced")

    def __str__(self) -> str:
        return format(self)


class SglArgument(_Placeholder):
    """Stands for an argument."""


class SglVariable(_Placeholder):
    """Stands for what the model will have produced."""


@dataclasses.dataclass(eq=False)
class SglGen(SglExpr):
    """An answer of the model. `overrides` are the sampling parameters that were given to it."""

    name: str | None
    overrides: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(eq=False)
class SglSelect(SglExpr):
    """The likeliest of some texts."""

    name: str | None
    choices: list[str]
    temperature: float
    choices_method: ChoicesSamplingMethod


@dataclasses.dataclass(eq=False)
class SglImage(SglExpr):
    """A path, a URL or the bytes of an image."""

    source: str | bytes


@dataclasses.dataclass(eq=False)
class SglVideo(SglExpr):
    """Frames of a video, shown as images."""

    path: str
    num_frames: int


@dataclasses.dataclass(eq=False)
class SglRoleBegin(SglExpr):
    role: str


@dataclasses.dataclass(eq=False)
class SglRoleEnd(SglExpr):
    role: str


@dataclasses.dataclass(eq=False)
class SglVarScopeBegin(SglExpr):
    name: str


@dataclasses.dataclass(eq=False)
class SglVarScopeEnd(SglExpr):
    name: str


@dataclasses.dataclass(eq=False)
class SglFork(SglExpr):
    """A fork in a trace, with the traces of its branches."""

    branches: "list[TracerProgramState]"


class SglCommitLazy(SglExpr):
    """Plants the text so far in the server's cache."""


@dataclasses.dataclass(eq=False)
class SglConcateAndAppend(SglExpr):
    """Appends what the branches of a fork added, in their order."""

    states: Sequence[Any]


@dataclasses.dataclass(eq=False)
class SglSeparateReasoning(SglExpr):
    """Answers whose reasoning goes into a variable of its own and not into the text."""

    expr: SglExpr
    model_type: str | None


class SglFunction:
    """A program: a function whose first parameter is the state `s`."""

    def __init__(
        self,
        func: Callable[..., Any],
        num_api_spec_tokens: int | None = None,
        bind_arguments: Mapping[str, Any] | None = None,
    ) -> None:
        spec = inspect.getfullargspec(func)
        assert spec.args[:1] == ["s"], 'The first argument must be "s"'
        self.func = func
        self.num_api_spec_tokens = num_api_spec_tokens
        self.bind_arguments = dict(bind_arguments or {})
        self.arg_names = [*spec.args[1:], *spec.kwonlyargs]
        self.arg_defaults = dict(
            zip(reversed(spec.args), reversed(spec.defaults or ()), strict=False)
        ) | (spec.kwonlydefaults or {})
        self.__name__ = getattr(func, "__name__", type(func).__name__)
        self.__doc__ = func.__doc__
        taken = [name for name in self.arg_names if name in (*RUN_OPTIONS, *_CALL_OPTIONS)]
        if taken:
            raise ValueError(
                f"the program {self.__name__} has the parameter {taken[0]!r}, which is an option "
                "of run(); choose another name"
            )

    def bind(self, **kwargs: Any) -> "SglFunction":
        """The same program with some arguments already given."""
        unknown = [name for name in kwargs if name not in self.arg_names]
        if unknown:
            raise TypeError(
                f"the program {self.__name__} has no parameter {unknown[0]!r}; allowed: "
                f"{', '.join(self.arg_names) or 'none'}"
            )
        return SglFunction(self.func, self.num_api_spec_tokens, {**self.bind_arguments, **kwargs})

    def run(
        self,
        *args: Any,
        stream: bool = False,
        backend: "BaseBackend | None" = None,
        use_thread: bool = True,
        **options: Any,
    ) -> "ProgramState":
        """Runs the program; what it appended may still be on its way when this returns.

        `options` are the sampling parameters (`RUN_OPTIONS`), which hold where a `gen` does not
        say otherwise, and the program's own arguments.
        """
        from sglang.lang.interpreter import run_program

        sampling, kwargs = _split(options)
        return run_program(
            self, backend_of(backend), args, kwargs, sampling, stream=stream, use_thread=use_thread
        )

    def run_batch(
        self,
        batch_kwargs: Sequence[Any],
        *,
        backend: "BaseBackend | None" = None,
        num_threads: int | str = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        **sampling: Any,
    ) -> "list[ProgramState] | Iterator[ProgramState]":
        """Runs the program once per entry, a mapping or a tuple of arguments, in parallel.

        The states come in the order of the entries; with `generator_style` one by one, each as
        soon as it and those before it are done.
        """
        from sglang.lang.interpreter import run_program_batch

        params, unknown = _split(sampling)
        if unknown:
            raise TypeError(
                f"run_batch has no option {next(iter(unknown))!r}; a program's arguments go into "
                "the entries, or through bind()"
            )
        rows = [self._named(row) for row in batch_kwargs]
        if not rows:
            return iter(()) if generator_style else []
        states = run_program_batch(
            self, backend_of(backend), rows, params, num_threads, progress_bar=progress_bar
        )
        return states if generator_style else list(states)

    def trace(self, *, backend: "BaseBackend | None" = None, **kwargs: Any) -> "TracerProgramState":
        """What the program appends, without running it."""
        from sglang.lang.tracer import trace_program

        return trace_program(self, kwargs, backend_or_none(backend))

    def cache(self, backend: "BaseBackend | None" = None) -> None:
        """Plants the text that every run of the program begins with in the server's cache."""
        from sglang.lang.interpreter import cache_program

        cache_program(self, backend_of(backend))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from sglang.lang.tracer import TracingScope

        if TracingScope.current() is None:
            return self.run(*args, **kwargs)
        named = dict(zip(self.arg_names, args, strict=False))
        options = {k: v for k, v in kwargs.items() if k in self.arg_names}
        return self.trace(backend=kwargs.get("backend"), **named, **options)

    def _named(self, row: Any) -> dict[str, Any]:
        if isinstance(row, Mapping):
            return dict(row)
        values = row if isinstance(row, list | tuple) else (row,)
        free = [name for name in self.arg_names if name not in self.bind_arguments]
        if len(values) > len(free):
            raise TypeError(
                f"an entry of the batch has {len(values)} values, the program {self.__name__} has "
                f"{len(free)} parameters that are not bound"
            )
        return dict(zip(free, values, strict=False))


def _split(options: dict[str, Any]) -> tuple[SglSamplingParams, dict[str, Any]]:
    sampling = {name: value for name, value in options.items() if name in RUN_OPTIONS}
    rest = {name: value for name, value in options.items() if name not in RUN_OPTIONS}
    return SglSamplingParams(**sampling), rest


def backend_of(given: Any) -> "BaseBackend":
    """What to run against: a backend or a Runtime's, or else the default."""
    backend = backend_or_none(given)
    if backend is None:
        raise ValueError(
            "no backend to run against; call sgl.set_default_backend(sgl.RuntimeEndpoint(url)) "
            "once, or pass backend=…"
        )
    return backend


def backend_or_none(given: Any) -> "BaseBackend | None":
    chosen = given if given is not None else global_config.default_backend
    found: BaseBackend | None = getattr(chosen, "endpoint", chosen)
    return found


def refuse_offset(position_ids_offset: object) -> None:
    """`fork` and `copy` have the parameter in their signatures; positions follow from the text."""
    if position_ids_offset is not None:
        raise ValueError(
            f"position_ids_offset={position_ids_offset!r} is not supported: a branch goes on where "
            "its text does; leave it out"
        )
