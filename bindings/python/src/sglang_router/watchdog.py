"""Ends process groups when the process that started them is gone, however it went.

Runs as a process of its own, with the standard library only. The owner holds the other end of its
standard input: a line with a number adds a process group, `done` ends the watch, and end of file
without `done` means that the owner was killed.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable

GRACE_SECONDS = 5.0
POLL_SECONDS = 0.05


def main() -> None:
    groups: list[int] = []
    for line in sys.stdin:
        if line.strip() == "done":
            return
        groups.append(int(line))
    end(groups)


def end(groups: Iterable[int]) -> None:
    """Asks all groups to end, then kills what is left after the grace."""
    left = [group for group in groups if send(group, signal.SIGTERM)]
    deadline = time.monotonic() + GRACE_SECONDS
    while left and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        left = [group for group in left if send(group, 0)]
    for group in left:
        send(group, signal.SIGKILL)


def send(group: int, number: int) -> bool:
    """Signals a process group; whether there is one. Number 0 only asks."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        return True
    return False


if __name__ == "__main__":
    # A terminal or a service manager signals every process; this one goes last, at end of file.
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    main()
