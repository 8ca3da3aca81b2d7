"""`python -m sglang.bench_serving`: measures a running server."""

import sys

from sglang.benchmark.serving import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
