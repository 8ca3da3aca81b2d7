"""The commands `smg`, `amg` and `sglang-router`."""

import signal
import sys
from collections.abc import Sequence

from sglang_router.output import may_go_unread

SERVER_COMMANDS = ("server", "serve")
ALSO_HERE = (
    "Also here: `smg server`, engine workers and a gateway in one command (`smg server --help`)."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line. `server` starts engine workers; all else is the gateway's parser."""
    code = 0
    with may_go_unread():
        code = _run(list(sys.argv[1:] if argv is None else argv))
    return code


def run_gateway(arguments: Sequence[str]) -> int:
    """The gateway's command line in this process, as the binary `smg` runs it."""
    from sglang_router.sglang_router_rs import run

    # The gateway drains on Ctrl-C; Python's handler would raise KeyboardInterrupt once it is done.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return run(list(arguments))


def _run(arguments: list[str]) -> int:
    if arguments and arguments[0] in SERVER_COMMANDS:
        from sglang_router import launch_server

        return launch_server.main(arguments[1:])
    status = run_gateway(arguments)
    if arguments in (["-h"], ["--help"]):
        print(f"\n{ALSO_HERE}")
    return status


if __name__ == "__main__":
    sys.exit(main())
