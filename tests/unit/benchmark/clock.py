"""Time that passes only while somebody sleeps."""

import asyncio

from sglang.benchmark.client import Clock


class FakeTime:
    def __init__(self) -> None:
        self.seconds = 0.0
        self.clock = Clock(now=lambda: self.seconds, sleep=self.sleep)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)
        self.seconds += seconds
