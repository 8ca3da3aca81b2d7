"""`make bench`: all suites, or the named ones: `python -m bench engine gateway`."""

import sys

from bench import (
    cache,
    calibration,
    cancel,
    engine,
    gateway,
    grammar,
    kv_index,
    routing,
    scheduling,
)

SUITES = {
    "engine": engine.main,
    "gateway": gateway.main,
    "cancel": cancel.main,
    "cache": cache.main,
    "scheduling": scheduling.main,
    "grammar": grammar.main,
    "routing": routing.main,
    "calibration": calibration.main,
    "kv-index": kv_index.main,
}


def main() -> None:
    names = sys.argv[1:] or list(SUITES)
    if unknown := [name for name in names if name not in SUITES]:
        raise SystemExit(f"bench: no suite {unknown[0]!r}; there are {', '.join(SUITES)}")
    for name in names:
        SUITES[name]()


if __name__ == "__main__":
    main()
