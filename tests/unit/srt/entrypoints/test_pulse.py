"""A scheduler that says nothing is asked, suspected, and at last given up."""

import asyncio

import pytest

from sglang.srt.entrypoints.pulse import Pulse

SUSPECT, GIVE_UP = 20.0, 320.0
INTERVAL = SUSPECT / 4


class SilentClient:
    """What Pulse sees of a SchedulerClient."""

    def __init__(self) -> None:
        self.became_ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.became_ready.set_result(None)
        self.num_received = 0
        self.pings = 0
        self.suspicions: list[str] = []

    def ping(self) -> None:
        self.pings += 1

    def suspect(self, reason: str) -> None:
        self.suspicions.append(reason)


class Enough(Exception):
    """The test has seen what it wanted."""


class Time:
    """Passes while somebody sleeps; `events` happen at the given look."""

    def __init__(self, events: dict[int, float | None] | None = None, looks: int = 1000) -> None:
        self.now, self.look, self.looks = 0.0, 0, looks
        self.client: SilentClient | None = None
        self.heard_at = {look for look, jump in (events or {}).items() if jump is None}
        self.jumps = {look: jump for look, jump in (events or {}).items() if jump is not None}

    async def sleep(self, seconds: float) -> None:
        self.look += 1
        if self.look > self.looks:
            raise Enough
        self.now += self.jumps.get(self.look, seconds)
        if self.look in self.heard_at:
            assert self.client is not None
            self.client.num_received += 1


def pulse(client: SilentClient, time: Time) -> Pulse:
    time.client = client
    return Pulse(client, SUSPECT, GIVE_UP, clock=lambda: time.now, sleep=time.sleep)  # type: ignore[arg-type]


async def test_silence_is_asked_about_once_then_suspected_then_the_end() -> None:
    client, time = SilentClient(), Time()
    reason = await pulse(client, time).run()
    assert client.pings == 1
    assert client.suspicions[0] == "the scheduler has been silent for 20 s"
    assert len(client.suspicions) == (GIVE_UP - SUSPECT) / INTERVAL + 1
    assert time.now == GIVE_UP
    assert reason == "The scheduler gave no sign of life for 320 s"


async def test_one_word_ends_the_silence() -> None:
    client, time = SilentClient(), Time({3: None, 6: None}, looks=9)
    with pytest.raises(Enough):
        await pulse(client, time).run()
    assert client.suspicions == []
    assert client.pings == 3  # once per silence


async def test_time_in_which_the_launcher_itself_was_stopped_does_not_count() -> None:
    client, time = SilentClient(), Time({2: 10_000.0}, looks=3)
    with pytest.raises(Enough):
        await pulse(client, time).run()
    assert client.suspicions == ["the scheduler has been silent for 20 s"]


async def test_nothing_is_asked_before_the_scheduler_is_ready() -> None:
    client, time = SilentClient(), Time()
    client.became_ready = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(pulse(client, time).run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert time.look == 0
    task.cancel()
