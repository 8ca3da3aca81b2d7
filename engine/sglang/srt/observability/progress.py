"""Progress of long phases: a line that redraws itself on a terminal, log lines elsewhere."""

import logging
import sys
import time
from collections.abc import Callable
from typing import TextIO

logger = logging.getLogger(__name__)
BAR_WIDTH = 30
REDRAW_INTERVAL = 0.1  # seconds
LOG_INTERVAL = 5.0  # seconds


class ProgressLine:
    """Shows phases of known or unknown size, in bytes. `close` ends the line."""

    def __init__(
        self, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._out = out or sys.stderr
        self._clock = clock
        self._on_terminal = self._out.isatty()
        self._phase = ""
        self._phase_start = 0.0
        self._last_shown = 0.0
        self._line_open = False
        self._was_done = False

    def update(self, phase: str, done_bytes: int = 0, total_bytes: int = 0) -> None:
        """Shows where `phase` is, at most ten times a second (a log line each five seconds)."""
        now = self._clock()
        is_new = phase != self._phase
        if is_new:
            self.close()
            self._phase, self._phase_start, self._was_done = phase, now, False
        is_done = 0 < total_bytes <= done_bytes
        if is_done and self._was_done:
            return
        self._was_done = is_done
        interval = REDRAW_INTERVAL if self._on_terminal else LOG_INTERVAL
        if not is_new and not is_done and now - self._last_shown < interval:
            return
        self._last_shown = now
        text = describe(phase, done_bytes, total_bytes, now - self._phase_start)
        if self._on_terminal:
            self._out.write(f"\r\x1b[K{text}")
            self._out.flush()
            self._line_open = True
        else:
            logger.info("%s", text)

    def close(self) -> None:
        """Leaves the last state on the screen and starts a new line."""
        if self._line_open:
            self._out.write("\n")
            self._out.flush()
            self._line_open = False


def describe(phase: str, done_bytes: int, total_bytes: int, elapsed: float) -> str:
    """`loading weights [#####     ] 49.0/98.0 MB, 2 s left`."""
    if not total_bytes:
        return phase
    share = min(done_bytes / total_bytes, 1.0)
    bar = ("#" * round(share * BAR_WIDTH)).ljust(BAR_WIDTH)
    text = f"{phase} [{bar}] {done_bytes / 1e6:.1f}/{total_bytes / 1e6:.1f} MB"
    if 0 < share < 1:
        text += f", {elapsed / share * (1 - share):.0f} s left"
    return text
