"""Command lines that hold a benchmark's own flags and those of the engine."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from sglang.benchmark.options import flags_of, make_parser
from sglang.benchmark.refusals import nearest

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs

Own = TypeVar("Own")


def split(
    declared: type[Own], argv: Sequence[str], prog: str, description: str
) -> tuple[Own, list[str]]:
    """The benchmark's options, and the flags that are the engine's.

    A mistake ends the process with code 2 and one sentence.
    """
    parser = make_parser(declared, prog, description)
    parser.epilog = "Every flag of `python -m sglang.launch_server` is taken too."
    known, others = parser.parse_known_args(argv)
    own: Any = declared(**vars(known))
    try:
        own.check()
    except ValueError as error:
        parser.error(str(error))
    return own, others


def engine_args(declared: type[Any], argv: Sequence[str], prog: str) -> "ServerArgs":
    """Options of a model that is on disk. ValueError: it is not."""
    from sglang.srt import plugins
    from sglang.srt.entrypoints.offline.model_options import located
    from sglang.srt.environ import let_idle_threads_sleep
    from sglang.srt.server_args import prepare_server_args

    let_idle_threads_sleep()  # before torch is loaded, so that it has an effect in this process
    plugins.load_plugins()
    with _own_flags_named(declared, argv):
        args = prepare_server_args(argv, prog=prog)
    return located(args)


def given(declared: type[Any], argv: Sequence[str], prog: str) -> dict[str, Any]:
    """The engine's options that are no defaults, by name: for a server that is started."""
    from sglang.srt.server_args import resolve_server_args

    with _own_flags_named(declared, argv):
        args, origins = resolve_server_args(argv, prog=prog)
    return {name: getattr(args, name) for name in origins if hasattr(args, name)}


@contextmanager
def _own_flags_named(declared: type[Any], argv: Sequence[str]) -> Iterator[None]:
    """If the engine refuses flags that resemble the benchmark's own, those are named, too."""
    try:
        yield
    except SystemExit as ended:
        flags = [argument for argument in argv if argument.startswith("--")] if ended.code else []
        for flag in flags:
            if near := nearest(flag, flags_of(declared)):
                print(f"{flag}: did you mean the benchmark's own {near}?", file=sys.stderr)
        raise


def check_counts(**values: int) -> None:
    """Raises ValueError that names the flag of a count below 1."""
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
