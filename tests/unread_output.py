"""Commands whose standard output nobody reads."""

import os
import subprocess
import sys
from collections.abc import Sequence


def run_unread(argv: Sequence[str], unbuffered: bool) -> subprocess.CompletedProcess[str]:
    """`python ARGV | true`, for which the pipe is closed before the command starts."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(
            [sys.executable, *argv], stdout=writer, stderr=subprocess.PIPE, text=True, check=False,
            env={**os.environ, "PYTHONUNBUFFERED": "1" if unbuffered else ""},
        )  # fmt: skip
    finally:
        os.close(writer)
