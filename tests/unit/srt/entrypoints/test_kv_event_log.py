"""Batches are numbered, replayed, and summed up; who does not keep up is told where to go on."""

import asyncio
import itertools

import pytest

from sglang.srt.core.kv_events import (
    CPU_PINNED,
    GPU,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvEvent,
)
from sglang.srt.entrypoints import kv_event_log
from sglang.srt.entrypoints.kv_event_log import (
    KvEventLog,
    LogClosed,
    OutOfRange,
    SlowSubscriber,
    Subscription,
)

GUARD = 10.0


def stored(block: int, parent: int | None = None, medium: str = GPU, size: int = 1) -> BlockStored:
    return BlockStored([block], parent, [block] * size, size, medium)


def log_of(*batches: list[KvEvent], buffer_steps: int = 100) -> KvEventLog:
    ticks = itertools.count()
    log = KvEventLog(buffer_steps, clock=lambda: float(next(ticks)))
    for batch in batches:
        log.append(batch)
    return log


async def numbers(subscription: Subscription, count: int) -> list[int]:
    found = []
    for _ in range(count):
        batch = await subscription.next(GUARD)
        assert batch is not None
        found.append(batch.sequence)
    return found


def blocks(log: KvEventLog) -> list[int]:
    return [page.block_hashes[0] for page in log.snapshot().pages]


def test_batches_are_numbered_from_one_and_empty_steps_are_none() -> None:
    log = log_of([stored(1)], [], [stored(2)])
    assert [(b.sequence, b.timestamp) for b in log.replay(1)] == [(1, 0.0), (2, 1.0)]
    assert (log.first, log.last) == (1, 2)


def test_snapshot_is_what_the_batches_add_up_to() -> None:
    log = log_of([stored(1), stored(2, 1), stored(1, medium=CPU_PINNED)], [BlockRemoved([2])])
    assert blocks(log) == [1, 1]
    assert log.snapshot().sequence == 2
    log.append([BlockRemoved([1])])
    assert [page.medium for page in log.snapshot().pages] == [CPU_PINNED]
    log.append([AllBlocksCleared(), stored(7)])
    assert blocks(log) == [7]


def test_only_the_latest_batches_are_kept() -> None:
    log = log_of(*[[stored(i)] for i in range(10)], buffer_steps=3)
    assert [batch.sequence for batch in log.replay(1)] == [8, 9, 10]
    assert [batch.sequence for batch in log.replay(10)] == [10]
    assert blocks(log) == list(range(10))


def test_large_batches_are_kept_for_a_shorter_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_event_log, "MAX_BUFFERED_WEIGHT", 100)
    log = log_of(*[[stored(i, size=42)] for i in range(5)])
    assert [batch.sequence for batch in log.replay(1)] == [4, 5]


def test_very_many_events_of_a_step_become_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_event_log, "MAX_BATCH_TOKENS", 8)
    events: list[KvEvent] = [AllBlocksCleared(), *[stored(i, size=4) for i in range(4)]]
    log = log_of([*events, stored(9, size=20)])
    assert [len(batch.events) for batch in log.replay(1)] == [2, 2, 1, 1]
    assert [event for batch in log.replay(1) for event in batch.events][:5] == events


async def test_start_zero_gives_a_snapshot_and_what_comes_after_it() -> None:
    log = log_of([stored(1)], [stored(2)])
    with log.subscribe(0) as subscription:
        assert subscription.snapshot is not None
        assert (subscription.snapshot.sequence, len(subscription.snapshot.pages)) == (2, 2)
        log.append([stored(3)])
        assert await numbers(subscription, 1) == [3]
        assert await subscription.next(0.0) is None


async def test_number_that_is_buffered_gives_a_replay_from_it() -> None:
    log = log_of(*[[stored(i)] for i in range(5)], buffer_steps=3)
    with log.subscribe(3) as subscription:
        log.append([stored(9)])
        assert subscription.snapshot is None
        assert await numbers(subscription, 4) == [3, 4, 5, 6]


async def test_next_number_gives_what_comes_and_nothing_else() -> None:
    log = log_of([stored(1)])
    with log.subscribe(2) as subscription:
        assert subscription.snapshot is None
        assert await subscription.next(0.0) is None
        log.append([stored(2)])
        assert await numbers(subscription, 1) == [2]


async def test_number_that_is_gone_gives_a_snapshot() -> None:
    log = log_of(*[[stored(i)] for i in range(5)], buffer_steps=3)
    with log.subscribe(2) as subscription:
        assert subscription.snapshot is not None
        assert subscription.snapshot.sequence == 5


def test_number_ahead_of_the_next_one_is_out_of_range() -> None:
    log = log_of([stored(1)])
    with pytest.raises(OutOfRange, match="start_sequence_number 3 .* last batch, 1"):
        log.subscribe(3).__enter__()


async def test_slow_subscriber_is_cut_off_and_goes_on_without_loss() -> None:
    log = log_of()
    with log.subscribe(0, max_queued=2) as slow, log.subscribe(0) as other:
        for i in range(4):
            log.append([stored(i)])
        with pytest.raises(SlowSubscriber, match="start_sequence_number 1$"):
            await slow.next(GUARD)
        assert await numbers(other, 4) == [1, 2, 3, 4]
    with log.subscribe(1, max_queued=2) as again:
        log.append([stored(9)])
        assert await numbers(again, 5) == [1, 2, 3, 4, 5]


async def test_close_ends_subscribers_after_what_they_have_not_got() -> None:
    log = log_of()
    with log.subscribe(0) as subscription:
        log.append([stored(1)])
        log.close("the end")
        log.close("too late to matter")
        assert await numbers(subscription, 1) == [1]
        with pytest.raises(LogClosed, match="the end"):
            await subscription.next(GUARD)
    with log.subscribe(0) as late, pytest.raises(LogClosed, match="the end"):
        await late.next(GUARD)


async def test_subscriber_that_left_gets_nothing_more() -> None:
    log = log_of()
    with log.subscribe(0) as subscription:
        pass
    log.append([stored(1)])
    assert await subscription.next(0.0) is None


async def test_waiting_subscriber_is_woken() -> None:
    log = log_of()
    with log.subscribe(0) as subscription:
        waiting = asyncio.create_task(numbers(subscription, 1))
        await asyncio.sleep(0)
        log.append([stored(1)])
        assert await asyncio.wait_for(waiting, GUARD) == [1]
