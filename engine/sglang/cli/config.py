"""`sglang config show [options]`: every option with its value and where that came from."""

import sys
from collections.abc import Sequence

from sglang.cli.serve import read_arguments
from sglang.cli.serve_backends import AUTO, FALLBACK_BACKEND, MODEL_TYPE_FLAG, ServeBackendError

HELP = """usage: sglang config show [MODEL] [options of sglang serve]

Prints what a server started with the same arguments, variables and config file would use."""


def run(argv: Sequence[str]) -> int:
    if not argv or argv[0] != "show":
        asked = bool(argv) and argv[0] in ("-h", "--help")
        print(HELP, file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    try:
        model_type, request = read_arguments(argv[1:])
    except ServeBackendError as error:
        print(f"sglang config show: {error}", file=sys.stderr)
        return 2
    if model_type not in (AUTO, FALLBACK_BACKEND):
        print(
            f"sglang config show: {MODEL_TYPE_FLAG} {model_type} has options of its own; shown "
            f"here are only those of {FALLBACK_BACKEND}; try `sglang serve {MODEL_TYPE_FLAG} "
            f"{model_type} --help`",
            file=sys.stderr,
        )
        return 2
    print("\n".join(lines(request.argv)))
    return 0


def lines(argv: Sequence[str]) -> list[str]:
    """`name = value  (origin)`, in the order of `--help`."""
    from sglang.srt import plugins
    from sglang.srt.arg_groups.declaration import options_of
    from sglang.srt.entrypoints.front_door import front_door_options
    from sglang.srt.server_args import ServerArgs, resolve_server_args

    plugins.load_plugins()  # as a server does: they may add options and change values
    args, origins = resolve_server_args(
        argv, prog="sglang config show", extra=front_door_options, needs_model=False
    )
    own = options_of(ServerArgs)
    names = {option.name for option in own}
    shown = []
    for option in [*own, *(o for o in front_door_options() if o.name not in names)]:
        is_own = option.name in names
        value = getattr(args, option.name) if is_own else args.front_door.get(
            option.name, option.default
        )  # fmt: skip
        text = "(hidden)" if option.secret and value else repr(value)
        shown.append(f"{option.name} = {text}  ({origins.get(option.name, 'default')})")
    return shown
