"""`sglang bench serving [options]`: `python -m sglang.bench_serving`."""

import sys
from collections.abc import Sequence

HELP = """usage: sglang bench serving [options]

Sends requests to a running server and reports latencies and rates;
`sglang bench serving --help` lists the options."""


def run(argv: Sequence[str]) -> int:
    if not argv or argv[0] != "serving":
        asked = bool(argv) and argv[0] in ("-h", "--help")
        print(HELP, file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    from sglang.benchmark.serving import main  # loads numpy and an HTTP client

    return main(argv[1:], prog="sglang bench serving")
