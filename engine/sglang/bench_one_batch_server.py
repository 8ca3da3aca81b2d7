"""`python -m sglang.bench_one_batch_server`: measures a server on one batch at a time."""

import sys

from sglang.benchmark.one_batch_server import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
