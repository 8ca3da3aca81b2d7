"""`python -m sglang.bench_offline_throughput`: measures an engine in this process."""

import sys

from sglang.benchmark.offline_throughput import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
