"""`SubscribeKvEvents`: a snapshot, replays, live batches and loads, over a real gRPC server."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from sglang.srt.core.kv_events import (
    CPU_PINNED,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvEvent,
)
from sglang.srt.core.messages import ControlInput, ControlOutput, StepOutput
from sglang.srt.entrypoints import grpc_kv_events, kv_event_log, wire
from tests.wire.fake_scheduler import GUARD, Worker


class Subscriber:
    """A call, and what it is told to be cached."""

    def __init__(self, worker: Worker, start: int, *, loads: bool = False) -> None:
        request = wire.common("SubscribeKvEventsRequest")(
            start_sequence_number=start, load_records_before_first_batch=loads
        )
        self.call = worker.rpc.SubscribeKvEvents(request)
        self.pages: dict[tuple[int, str], list[int]] = {}

    async def next(self) -> Any:
        message = await asyncio.wait_for(self.call.read(), GUARD)
        for event in message.events:
            self.apply(event)
        return message

    async def next_batch(self) -> Any:
        """The next message that is more than a load."""
        while True:
            message = await self.next()
            if not message.load.load_only:
                return message

    async def status(self) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            while await self.next() is not grpc.aio.EOF:
                pass
        return caught.value.code(), caught.value.details()

    def apply(self, event: Any) -> None:
        match event.WhichOneof("data"):
            case "stored":
                for block in event.stored.blocks:
                    self.pages[block.block_hash, event.stored.medium] = list(block.token_ids)
            case "removed":
                for block_hash in event.removed.block_hashes:
                    del self.pages[block_hash, event.removed.medium]
            case "cleared":
                self.pages.clear()
            case other:
                raise AssertionError(other)


async def until(what: Callable[[], object]) -> None:
    async def wait() -> None:
        while not what():
            await asyncio.sleep(0)

    await asyncio.wait_for(wait(), GUARD)


async def happen(worker: Worker, *events: KvEvent) -> None:
    await worker.scheduler.send(
        StepOutput(outputs=[], load=worker.scheduler.load, kv_events=list(events))
    )
    target = worker.client.kv_events.last + 1
    await until(lambda: worker.client.kv_events.last >= target)


async def subscribe(worker: Worker, start: int = 0, **options: Any) -> Subscriber:
    """The scheduler is asked for events before the log is looked at."""
    made = Subscriber(worker, start, **options)
    asked = await worker.scheduler.receive()
    assert isinstance(asked, ControlInput) and asked.name == "kv_events"
    await worker.scheduler.send(ControlOutput(id=asked.id))
    return made


CHAIN = [
    BlockStored([-1], None, [1, 2], 2),
    BlockStored([2], -1, [3, 4], 2),
    BlockStored([3], 2, [5, 6], 2),
]


async def test_first_subscriber_gets_what_is_there_and_then_what_changes(worker: Worker) -> None:
    await happen(worker, AllBlocksCleared(), *CHAIN)
    subscriber = await subscribe(worker)
    snapshot = await subscriber.next()
    assert (snapshot.sequence_number, snapshot.dp_rank) == (1, 0)
    assert [event.WhichOneof("data") for event in snapshot.events] == ["cleared", "stored"]
    chunk = snapshot.snapshot
    assert (chunk.index, chunk.count, chunk.blocks, chunk.unknown_before) == (0, 1, 3, 0)
    await happen(worker, BlockRemoved([3]), BlockRemoved([2]))
    batch = await subscriber.next_batch()
    assert batch.sequence_number == 2 and not batch.HasField("snapshot")
    assert [list(event.removed.block_hashes) for event in batch.events] == [[3, 2]]
    assert subscriber.pages == {(-1, "GPU"): [1, 2]}


async def test_events_that_starting_has_caused_are_in_the_snapshot(worker: Worker) -> None:
    subscriber = Subscriber(worker, 0)
    asked = await worker.scheduler.receive()
    await happen(worker, AllBlocksCleared(), *CHAIN)
    await worker.scheduler.send(ControlOutput(id=asked.id))
    assert (await subscriber.next()).snapshot.blocks == 3


async def test_a_chain_is_one_event_with_its_first_parent(worker: Worker) -> None:
    subscriber = await subscribe(worker)
    await subscriber.next()
    await happen(
        worker,
        *CHAIN[1:],
        BlockStored([7], -1, [8, 9], 2),
        BlockStored([8], 7, [8, 9], 2, CPU_PINNED),
        BlockStored([9], None, [8, 9], 2, namespace="tenant"),
    )
    stored = [event.stored for event in (await subscriber.next_batch()).events]
    assert [[block.block_hash for block in each.blocks] for each in stored] == [
        [2, 3], [7], [8], [9],
    ]  # fmt: skip
    assert [each.parent_block_hash for each in stored[:3]] == [-1, -1, 7]
    assert not stored[3].HasField("parent_block_hash")
    assert [each.medium for each in stored] == ["GPU", "GPU", "CPU_PINNED", "GPU"]
    tier = wire.common("KvBlocksStored").DESCRIPTOR.fields_by_name["tier"].enum_type
    assert [tier.values_by_number[each.tier].name for each in stored[1:3]] == [
        "KV_CACHE_TIER_DEVICE", "KV_CACHE_TIER_HOST",
    ]  # fmt: skip
    assert [each.cache_salt for each in stored] == ["", "", "", "tenant"]
    assert stored[0].blocks[0].block_size == 2


async def test_large_snapshot_comes_in_chunks_of_one_number(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await happen(worker, *[BlockStored([i], None, [i], 1) for i in range(10)])
    monkeypatch.setattr(grpc_kv_events, "MAX_BATCH_TOKENS", 4)
    subscriber = await subscribe(worker)
    chunks = [await subscriber.next() for _ in range(3)]
    assert [chunk.sequence_number for chunk in chunks] == [1, 1, 1]
    assert [(c.snapshot.index, c.snapshot.count, c.snapshot.blocks) for c in chunks] == [
        (0, 3, 10), (1, 3, 10), (2, 3, 10),
    ]  # fmt: skip
    assert len(subscriber.pages) == 10


async def test_number_that_is_buffered_is_replayed(worker: Worker) -> None:
    for page in CHAIN:
        await happen(worker, page)
    subscriber = await subscribe(worker, 2)
    found = [await subscriber.next_batch() for _ in range(2)]
    assert [batch.sequence_number for batch in found] == [2, 3]
    assert not any(batch.HasField("snapshot") for batch in found)


async def test_number_that_is_gone_gives_cleared_and_a_snapshot(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_event_log, "MAX_BUFFERED_WEIGHT", 12)
    for page in CHAIN:
        await happen(worker, page)
    subscriber = await subscribe(worker, 1)
    message = await subscriber.next()
    assert (message.sequence_number, message.snapshot.blocks) == (3, 3)
    assert message.events[0].WhichOneof("data") == "cleared"


async def test_number_of_another_life_is_out_of_range(worker: Worker) -> None:
    await happen(worker, AllBlocksCleared())
    code, text = await (await subscribe(worker, 77)).status()
    assert code is grpc.StatusCode.OUT_OF_RANGE
    assert "77" in text and "subscribe with 0" in text


async def test_zero_is_answered_before_anything_was_stored(worker: Worker) -> None:
    message = await (await subscribe(worker)).next()
    assert (message.sequence_number, message.snapshot.count, message.snapshot.blocks) == (0, 1, 0)


async def test_batches_carry_the_load_and_loads_come_alone_when_nothing_changes(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_kv_events, "LOAD_INTERVAL", 0.05)
    worker.scheduler.load.num_running_reqs = 3
    worker.scheduler.load.num_waiting_reqs = 2
    worker.scheduler.load.num_used_tokens = 256
    await happen(worker, AllBlocksCleared())
    subscriber = await subscribe(worker)
    await subscriber.next()
    await happen(worker, *CHAIN)
    batch = await subscriber.next_batch()
    alone = await subscriber.next()
    assert (alone.sequence_number, len(alone.events), alone.load.load_only) == (2, 0, True)
    for load in (batch.load, alone.load):
        assert (load.running_requests, load.waiting_requests) == (3, 2)
        assert (load.token_usage, load.max_running_requests) == (0.5, 8)


@pytest.mark.parametrize("wanted", [True, False])
async def test_loads_before_the_first_batch_come_only_when_asked_for(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    monkeypatch.setattr(grpc_kv_events, "LOAD_INTERVAL", 0.01)
    subscriber = await subscribe(worker, 1, loads=wanted)
    if wanted:
        message = await subscriber.next()
        assert (message.sequence_number, message.load.load_only) == (0, True)
    await happen(worker, *CHAIN)
    message = await (subscriber.next_batch() if wanted else subscriber.next())
    assert (message.sequence_number, message.load.load_only) == (1, False)


async def test_slow_subscriber_is_told_where_to_go_on(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscriber = await subscribe(worker)
    await subscriber.next()
    monkeypatch.setattr(kv_event_log, "MAX_BUFFERED_WEIGHT", 1 << 40)
    big = [BlockStored([i], None, [i] * 8000, 8000) for i in range(2)]
    for _ in range(1500):  # more than transport and queue take together
        worker.client.kv_events.append(list(big))
        await asyncio.sleep(0)
    code, text = await subscriber.status()
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    start = int(text.rsplit(" ", 1)[1])
    again = await subscribe(worker, start)
    assert (await again.next_batch()).sequence_number == start


async def test_death_of_the_scheduler_ends_the_stream(worker: Worker) -> None:
    subscriber = await subscribe(worker)
    await subscriber.next()
    worker.client.fail("the scheduler died")
    assert await subscriber.status() == (grpc.StatusCode.UNAVAILABLE, "the scheduler died")


async def test_loading_worker_is_unavailable(loading: Worker) -> None:
    code, _ = await Subscriber(loading, 0).status()
    assert code is grpc.StatusCode.UNAVAILABLE


async def test_subscriber_that_leaves_is_forgotten(worker: Worker) -> None:
    subscriber = await subscribe(worker)
    await subscriber.next()
    log = worker.client.kv_events
    assert len(log._subscriptions) == 1
    subscriber.call.cancel()
    await until(lambda: not log._subscriptions)
