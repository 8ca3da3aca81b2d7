"""`python -m sglang.bench_serving`: measures a running server."""

import sys

from sglang.benchmark.serving import main
from sglang_router.output import may_go_unread

if __name__ == "__main__":
    with may_go_unread():
        sys.exit(main(sys.argv[1:]))
