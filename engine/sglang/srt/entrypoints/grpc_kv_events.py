"""The rpc `SubscribeKvEvents`: a snapshot, then every change of the prefix cache, and the load."""

import time
from collections.abc import Iterable, Iterator
from typing import Any

import grpc

from sglang.srt.core.kv_events import (
    CPU_PINNED,
    DISK,
    EXTERNAL,
    GPU,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvEvent,
)
from sglang.srt.entrypoints import wire
from sglang.srt.entrypoints.event_publisher import RANK
from sglang.srt.entrypoints.kv_event_log import (
    MAX_BATCH_TOKENS,
    LogClosed,
    OutOfRange,
    SlowSubscriber,
    Snapshot,
    Subscription,
)
from sglang.srt.entrypoints.scheduler_client import SchedulerClient, SchedulerUnavailable

LOAD_INTERVAL = 1.0  # seconds between two messages at most
Code = grpc.StatusCode

# Numbers of KvCacheTier.
TIER_OF = {GPU: 1, CPU_PINNED: 2, DISK: 3, EXTERNAL: 4}


class KvEventStream:
    """Serves any number of subscribers; the first one switches the scheduler's events on."""

    def __init__(self, client: SchedulerClient) -> None:
        self._client = client

    async def subscribe(self, request: Any, context: Any) -> None:
        """Ends with OUT_OF_RANGE for a number of another life of the worker, RESOURCE_EXHAUSTED
        for a subscriber that does not keep up, UNAVAILABLE when the worker ends.
        """
        log = self._client.kv_events
        try:
            # Answered after the events that tell what is cached already.
            await self._client.control("kv_events", {})
            with log.subscribe(request.start_sequence_number) as subscription:
                await self._send_all(subscription, request, context)
        except OutOfRange as error:
            await wire.abort(context, Code.OUT_OF_RANGE, str(error))
        except SlowSubscriber as error:
            await wire.abort(context, Code.RESOURCE_EXHAUSTED, str(error))
        except (LogClosed, SchedulerUnavailable) as error:
            await wire.abort(context, Code.UNAVAILABLE, str(error))

    async def _send_all(self, subscription: Subscription, request: Any, context: Any) -> None:
        sent = 0  # the last number
        may_send_load = request.load_records_before_first_batch
        if subscription.snapshot is not None:
            for message in snapshot_messages(subscription.snapshot):
                await context.write(message)
            sent, may_send_load = subscription.snapshot.sequence, True
        while True:
            batch = await subscription.next(LOAD_INTERVAL)
            if batch is not None:
                sent, may_send_load = batch.sequence, True
                message = _message(batch.sequence, batch.timestamp, batch.events)
                message.load.CopyFrom(self._load(load_only=False))
                await context.write(message)
            elif may_send_load:
                message = _message(sent, time.time(), [])
                message.load.CopyFrom(self._load(load_only=True))
                await context.write(message)

    def _load(self, *, load_only: bool) -> Any:
        client, load = self._client, self._client.load
        age = max(time.time() - client.last_receive_time, 0.0)
        return wire.common("EngineLoad")(
            running_requests=load.num_running_reqs,
            waiting_requests=load.num_waiting_reqs,
            waiting_uncached_tokens=load.num_waiting_uncached_tokens,
            token_usage=load.token_usage,
            gen_throughput=load.gen_throughput,
            max_running_requests=load.max_running_requests,
            age_ms=min(int(age * 1000), 2**32 - 1),
            sample=client.num_received,
            load_only=load_only,
            cache_hit_rate=load.cache_hit_rate,
            num_used_tokens=load.num_used_tokens,
            max_total_num_tokens=load.max_total_num_tokens,
        )


def snapshot_messages(snapshot: Snapshot) -> Iterator[Any]:
    """Chunks of one number. The first one begins with `cleared`: only the snapshot counts."""
    chunks = list(_chunks(snapshot.pages)) or [[]]
    for index, pages in enumerate(chunks):
        events: list[KvEvent] = [AllBlocksCleared()] if index == 0 else []
        message = _message(snapshot.sequence, time.time(), [*events, *pages])
        message.snapshot.index, message.snapshot.count = index, len(chunks)
        message.snapshot.blocks = len(snapshot.pages)
        yield message


def _chunks(pages: list[BlockStored]) -> Iterator[list[BlockStored]]:
    if pages:
        step = max(MAX_BATCH_TOKENS // pages[0].block_size, 1)
        for start in range(0, len(pages), step):
            yield pages[start : start + step]


def _message(sequence: int, timestamp: float, events: Iterable[KvEvent]) -> Any:
    message = wire.common("KvEventBatch")(
        sequence_number=sequence, timestamp=timestamp, dp_rank=RANK
    )
    last: KvEvent | None = None
    for event in events:
        if last is None or not _continues(last, event):
            message.events.add(event_id=len(message.events) + 1)
        _add(message.events[-1], event)
        last = event
    return message


def _continues(last: KvEvent, event: KvEvent) -> bool:
    """Whether both can stand in one event: a chain of stored pages, or pages that go together."""
    if isinstance(last, BlockStored) and isinstance(event, BlockStored):
        follows = event.parent_block_hash == last.block_hashes[-1]
        same_place = last.medium == event.medium and last.lora_name == event.lora_name
        return follows and same_place and last.namespace == event.namespace
    if isinstance(last, BlockRemoved) and isinstance(event, BlockRemoved):
        return last.medium == event.medium
    return False


def _add(target: Any, event: KvEvent) -> None:
    match event:
        case BlockStored():
            stored = target.stored
            if not stored.blocks:
                _name_place(stored, event.medium)
                if event.parent_block_hash is not None:
                    stored.parent_block_hash = event.parent_block_hash
                if event.namespace is not None:
                    stored.cache_salt = event.namespace
                if event.lora_name is not None:
                    stored.lora_name = event.lora_name
            stored.blocks.add(
                block_hash=event.block_hashes[0],
                token_ids=event.token_ids,
                block_size=event.block_size,
            )
        case BlockRemoved():
            _name_place(target.removed, event.medium)
            target.removed.block_hashes.extend(event.block_hashes)
        case AllBlocksCleared():
            target.cleared.SetInParent()


def _name_place(message: Any, medium: str) -> None:
    message.medium = medium
    message.tier = TIER_OF.get(medium, 0)
