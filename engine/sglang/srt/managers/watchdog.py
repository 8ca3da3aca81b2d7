"""Ends the process when a step does not return."""

import faulthandler
import time
from collections.abc import Callable

# Setting the timer starts a thread, which costs as much as the rest of a small step; so it is set
# again only after this share of the timeout, and for so much longer.
SLACK = 0.1


class Watchdog:
    """Writes every thread's stack to stderr and exits with code 1 when no step has begun for
    `timeout` seconds, or up to a tenth more, though there is work.
    """

    def __init__(self, timeout: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout = timeout
        self._clock = clock
        self._fresh_until = 0.0

    def step_begins(self) -> None:
        now = self._clock()
        if now >= self._fresh_until:
            # NOTE: a timer in C, so it also fires while a kernel holds the interpreter lock.
            faulthandler.dump_traceback_later(self._timeout * (1 + SLACK), exit=True)
            self._fresh_until = now + self._timeout * SLACK

    def rest(self) -> None:
        """There is nothing to compute."""
        if self._fresh_until:
            faulthandler.cancel_dump_traceback_later()
            self._fresh_until = 0.0
