"""`python -m sglang_router.launch_router`: the gateway alone, in front of running workers."""

import sys
from collections.abc import Sequence

from sglang_router.cli import run_gateway
from sglang_router.output import may_go_unread


def main(argv: Sequence[str] | None = None) -> int:
    return run_gateway(["launch", *(sys.argv[1:] if argv is None else argv)])


if __name__ == "__main__":
    with may_go_unread():
        sys.exit(main())
