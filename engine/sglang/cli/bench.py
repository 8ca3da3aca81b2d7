"""`sglang bench NAME [options]`: the benchmarks, each also `python -m sglang.bench_NAME`."""

import difflib
import importlib
import sys
from collections.abc import Sequence

# name → (module with its `main`, what it does)
BENCHMARKS = {
    "serving": ("serving", "latencies and rates of a running server under load"),
    "offline-throughput": (
        "offline_throughput",
        "all prompts at once, by an engine in the process",
    ),
    "one-batch": ("one_batch", "one batch through the model: no server, no scheduler"),
    "one-batch-server": ("one_batch_server", "one batch at a time through a server"),
}


def usage() -> str:
    lines = ["usage: sglang bench NAME [options]", ""]
    lines += [f"  {name:<20} {text}" for name, (_, text) in BENCHMARKS.items()]
    lines += ["", "`sglang bench NAME --help` lists its options."]
    return "\n".join(lines)


def run(argv: Sequence[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(usage(), file=sys.stdout if argv else sys.stderr)
        return 0 if argv else 2
    name, *rest = argv
    if name not in BENCHMARKS:
        nearest = difflib.get_close_matches(name, BENCHMARKS, n=1)
        hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(BENCHMARKS)}"
        print(f"sglang bench: unknown benchmark {name!r}; {hint}", file=sys.stderr)
        return 2
    # Loads numpy and an HTTP client.
    module = importlib.import_module(f"sglang.benchmark.{BENCHMARKS[name][0]}")
    code: int = module.main(rest, prog=f"sglang bench {name}")
    return code
