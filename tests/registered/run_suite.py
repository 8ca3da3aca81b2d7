"""Runs the registered test files of one backend and suite: `python3 run_suite.py [--suite NAME]`.

A file says at module level where it runs and how long it takes; the call is read from its syntax
tree, never imported, so its arguments are literals. Each file runs in a process of its own.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from sglang.test.ci.ci_register import Registration, registrations

ROOT = Path(__file__).resolve().parent
GUARD_FACTOR = 10
LEAST_GUARD = 60.0  # seconds


def registered(backend: str, suite: str | None) -> list[tuple[Path, Registration]]:
    """Files of the suite that are not disabled, longest first."""
    found = [
        (path, entry)
        for path in sorted(ROOT.rglob("test_*.py"))
        for entry in registrations(path)
        if entry.backend == backend and not entry.disabled and suite in (None, entry.suite)
    ]
    return sorted(found, key=lambda pair: -pair[1].est_time)


def unregistered() -> list[Path]:
    """Test files that CI would never run."""
    return [path for path in sorted(ROOT.rglob("test_*.py")) if not list(registrations(path))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--suite", default=None, help="only files of this suite; default: all")
    parser.add_argument("--list", action="store_true", help="print the files and their times")
    options = parser.parse_args()
    if missing := unregistered():
        print(f"{missing[0]} registers nothing, so CI would never run it", file=sys.stderr)
        return 1
    chosen = registered(options.backend, options.suite)
    if not chosen:
        print(f"no file is registered for {options.backend} {options.suite or ''}", file=sys.stderr)
        return 1
    failed = []
    for path, entry in chosen:
        print(
            f"{path.relative_to(ROOT)}  about {entry.est_time} s  {entry.suite or ''}", flush=True
        )
        if not options.list:
            guard = max(LEAST_GUARD, GUARD_FACTOR * entry.est_time)
            if subprocess.run([sys.executable, str(path)], timeout=guard).returncode:
                failed.append(path)
    for path in failed:
        print(f"FAILED {path.relative_to(ROOT)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
