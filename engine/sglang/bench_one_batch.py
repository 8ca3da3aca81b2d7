"""`python -m sglang.bench_one_batch`: measures the model without a server."""

import sys

from sglang.benchmark.one_batch import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
