"""`python -m sglang.bench_offline_throughput`: measures an engine in this process."""

import sys

from sglang.benchmark.offline_throughput import main
from sglang_router.output import may_go_unread

if __name__ == "__main__":
    with may_go_unread():
        sys.exit(main(sys.argv[1:]))
