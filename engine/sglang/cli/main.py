"""The command `sglang`: finds the subcommand and gives it the rest of the line."""

import difflib
import sys
from collections.abc import Callable, Sequence

from sglang.cli import bench, completions, config, download, plugins, serve
from sglang.version import __version__
from sglang_router.output import may_go_unread

USAGE_ERROR = 2


def _version(argv: Sequence[str]) -> int:
    if argv:
        print(f"sglang version: takes no arguments, got {argv[0]!r}", file=sys.stderr)
        return USAGE_ERROR
    print(f"sglang {__version__}")
    return 0


# name → (what it does, function of the remaining arguments that returns the exit code)
COMMANDS: dict[str, tuple[str, Callable[[Sequence[str]], int]]] = {
    "serve": ("serve a model: `sglang serve demo`", serve.run),
    "download": ("fetch a model into the cache folder: `sglang download demo`", download.run),
    "config": ("show every option with its origin: `sglang config show …`", config.run),
    "plugins": ("list extension points and what is plugged in: `sglang plugins list`", plugins.run),
    "bench": ("measure a running server: `sglang bench serving …`", bench.run),
    "completions": ("print shell completions: `sglang completions bash`", completions.run),
    "version": ("print the version", _version),
}


def usage() -> str:
    lines = ["usage: sglang COMMAND [arguments]", ""]
    lines += [f"  {name:<12} {text}" for name, (text, _) in COMMANDS.items()]
    lines += ["", "`sglang COMMAND --help` tells more about a command."]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line; returns the exit code."""
    code = 0
    with may_go_unread():
        code = _run(list(sys.argv[1:] if argv is None else argv))
    return code


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage(), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else USAGE_ERROR
    name, *rest = arguments
    if name in ("-V", "--version"):
        return _version(rest)
    if name not in COMMANDS:
        nearest = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {nearest[0]}?" if nearest else f"commands are {', '.join(COMMANDS)}"
        print(f"sglang: unknown command {name!r}; {hint}", file=sys.stderr)
        return USAGE_ERROR
    return COMMANDS[name][1](rest)


if __name__ == "__main__":
    sys.exit(main())
