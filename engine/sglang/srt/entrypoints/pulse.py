"""Notices a scheduler process that lives but does nothing: stopped, swapped out or wedged."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from sglang.srt.entrypoints.scheduler_client import SchedulerClient

logger = logging.getLogger(__name__)
TICKS = 4  # looks within the time after which silence is told


class Pulse:
    """Asks a silent scheduler for a sign of life, says that it gives none, and at last gives up.

    The scheduler answers between two steps, so `suspect_after` must exceed the longest step.
    """

    def __init__(
        self,
        client: SchedulerClient,
        suspect_after: float,
        give_up_after: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Both limits in seconds of silence."""
        self._client = client
        self._suspect_after = suspect_after
        self._give_up_after = give_up_after
        self._interval = suspect_after / TICKS
        self._clock = clock
        self._sleep = sleep

    async def run(self) -> str:
        """Returns why the scheduler is given up, once it is; begins when it became ready."""
        await asyncio.wait([self._client.became_ready])
        silence, last_look = 0.0, self._clock()
        while silence < self._give_up_after:
            heard = self._client.num_received
            await self._sleep(self._interval)
            now = self._clock()
            # NOTE: a launcher that was stopped itself (Ctrl-Z) has heard nothing meanwhile.
            slept, last_look = min(now - last_look, 2 * self._interval), now
            if self._client.num_received != heard:
                silence = 0.0
                continue
            if silence == 0.0:
                self._client.ping()
            silence += slept
            if silence >= self._suspect_after:
                self._client.suspect(f"the scheduler has been silent for {silence:.0f} s")
        return f"The scheduler gave no sign of life for {silence:.0f} s"
