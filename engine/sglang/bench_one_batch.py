"""`python -m sglang.bench_one_batch`: measures the model without a server."""

import sys

from sglang.benchmark.one_batch import main
from sglang_router.output import may_go_unread

if __name__ == "__main__":
    with may_go_unread():
        sys.exit(main(sys.argv[1:]))
