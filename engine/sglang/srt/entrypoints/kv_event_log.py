"""The numbered batches of KV events: the latest ones for replay, and what is cached now."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sglang.srt.core.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent

BUFFER_STEPS = 10_000
MAX_QUEUED = 1_000  # batches that may wait for one subscriber
# A batch stays well below the 4 MiB that many gRPC clients take, and is built in milliseconds.
MAX_BATCH_TOKENS = 16_384
# Of the buffered batches: about 64 MiB, whatever the page size.
MAX_BUFFERED_WEIGHT = 2_000_000
EVENT_WEIGHT = 8  # an event costs as much memory as so many token ids


class OutOfRange(Exception):
    """The number asked for lies ahead of the last batch."""


class SlowSubscriber(Exception):
    """Too many batches waited; the text names the one to go on from."""


class LogClosed(Exception):
    """No batch will come any more; the text says why."""


@dataclass(frozen=True)
class EventBatch:
    """What one step changed. Numbers are 1, 2, 3 …"""

    sequence: int
    timestamp: float  # seconds since the epoch
    events: list[KvEvent]

    @property
    def weight(self) -> int:
        return sum(EVENT_WEIGHT + _num_tokens(event) for event in self.events)


@dataclass(frozen=True)
class Snapshot:
    """All that is cached after batch `sequence`; parents come before their children."""

    sequence: int
    pages: list[BlockStored]


class Subscription:
    """What one subscriber still has to get: a snapshot or none, then batches without a hole."""

    def __init__(
        self, snapshot: Snapshot | None, replay: Iterable[EventBatch], max_queued: int
    ) -> None:
        self.snapshot = snapshot
        self._queue = deque(replay)
        self._limit = len(self._queue) + max_queued
        self._news = asyncio.Event()
        self._error: Exception | None = None
        if self._queue:
            self._news.set()

    async def next(self, timeout: float | None = None) -> EventBatch | None:
        """The next batch, or None after `timeout` seconds without one.

        Raises SlowSubscriber or LogClosed.
        """
        try:
            await asyncio.wait_for(self._news.wait(), timeout)
        except asyncio.TimeoutError:
            return None
        if not self._queue:
            assert self._error is not None, "woken by a batch or an error"
            raise self._error
        batch = self._queue.popleft()
        if not self._queue and self._error is None:
            self._news.clear()
        return batch

    def put(self, batch: EventBatch) -> None:
        if self._error is not None:
            return
        self._queue.append(batch)
        self._news.set()
        if len(self._queue) > self._limit:
            first = self._queue[0].sequence
            self._queue.clear()
            self.fail(
                SlowSubscriber(
                    f"the subscriber is {batch.sequence - first + 1} batches behind; subscribe "
                    f"again with start_sequence_number {first}"
                )
            )

    def fail(self, error: Exception) -> None:
        """After what waits already, `next` raises the error."""
        self._error = self._error or error
        self._news.set()


class KvEventLog:
    """One writer, the scheduler's news; any number of subscribers. All on one event loop."""

    def __init__(
        self, buffer_steps: int = BUFFER_STEPS, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.last = 0  # number of the latest batch
        self._clock = clock
        self._buffer_steps = buffer_steps
        self._buffer: deque[EventBatch] = deque()
        self._weight = 0
        self._pages: dict[tuple[int, str], BlockStored] = {}  # by hash and medium
        self._subscriptions: set[Subscription] = set()
        self._closed: LogClosed | None = None

    @property
    def first(self) -> int:
        """Number of the oldest batch that can be replayed; `last + 1` when there is none."""
        return self._buffer[0].sequence if self._buffer else self.last + 1

    def append(self, events: list[KvEvent]) -> None:
        """The events of one step: one batch, or several where they are very many."""
        for piece in _pieces(events):
            self.last += 1
            batch = EventBatch(self.last, self._clock(), piece)
            self._apply(piece)
            self._keep(batch)
            for subscription in self._subscriptions:
                subscription.put(batch)

    def replay(self, first: int) -> list[EventBatch]:
        """The batches from number `first` on that are still buffered."""
        skipped = max(first - self.first, 0)
        return [batch for i, batch in enumerate(self._buffer) if i >= skipped]

    def snapshot(self) -> Snapshot:
        return Snapshot(self.last, list(self._pages.values()))

    @contextmanager
    def subscribe(self, start: int = 0, max_queued: int = MAX_QUEUED) -> Iterator[Subscription]:
        """Batches from number `start` on. 0, or a number that is buffered no more: a snapshot and
        what comes after it. OutOfRange: that number is not even the next one.
        """
        if start > self.last + 1:
            raise OutOfRange(
                f"start_sequence_number {start} lies ahead of the last batch, {self.last}: the "
                "worker was restarted. Forget what it had cached and subscribe with 0"
            )
        if start == 0 or start < self.first:
            subscription = Subscription(self.snapshot(), [], max_queued)
        else:
            subscription = Subscription(None, self.replay(start), max_queued)
        if self._closed is not None:
            subscription.fail(self._closed)
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)

    def close(self, reason: str) -> None:
        """Ends every subscription, after what it has not got yet."""
        self._closed = self._closed or LogClosed(reason)
        for subscription in self._subscriptions:
            subscription.fail(self._closed)

    def _apply(self, events: list[KvEvent]) -> None:
        for event in events:
            match event:
                case BlockStored():
                    for block in event.block_hashes:
                        self._pages[block, event.medium] = event
                case BlockRemoved():
                    for block in event.block_hashes:
                        self._pages.pop((block, event.medium), None)
                case AllBlocksCleared():
                    self._pages.clear()

    def _keep(self, batch: EventBatch) -> None:
        self._buffer.append(batch)
        self._weight += batch.weight
        while len(self._buffer) > self._buffer_steps or self._weight > MAX_BUFFERED_WEIGHT:
            self._weight -= self._buffer.popleft().weight


def _num_tokens(event: KvEvent) -> int:
    return len(event.token_ids) if isinstance(event, BlockStored) else 0


def _pieces(events: list[KvEvent]) -> Iterator[list[KvEvent]]:
    """Runs of at most `MAX_BATCH_TOKENS` tokens, an event counting as one at least."""
    start = num_tokens = 0
    for i, event in enumerate(events):
        more = max(_num_tokens(event), 1)
        if num_tokens + more > MAX_BATCH_TOKENS and i > start:
            yield events[start:i]
            start, num_tokens = i, 0
        num_tokens += more
    if start < len(events):
        yield events[start:]
