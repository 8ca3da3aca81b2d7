"""Ends the process when a step does not return."""

import faulthandler
from collections.abc import Iterator
from contextlib import contextmanager


class Watchdog:
    """Writes every thread's stack to stderr and exits with code 1 after `timeout` seconds."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout

    @contextmanager
    def watch(self) -> Iterator[None]:
        # NOTE: a timer in C, so it also fires while a kernel holds the interpreter lock.
        faulthandler.dump_traceback_later(self._timeout, exit=True)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
