"""Publishes KV events beside the gRPC stream: over ZMQ, or as a plugin does."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from sglang.extension.registry import source_of
from sglang.srt.arg_groups.events import KvEventsConfig, host_and_port
from sglang.srt.core.kv_events import BlockRemoved, BlockStored, KvEvent
from sglang.srt.entrypoints.kv_event_log import EventBatch, KvEventLog, LogClosed, SlowSubscriber
from sglang.srt.extension_points import EVENT_PUBLISHERS

logger = logging.getLogger(__name__)
RANK = 0  # of a worker that is not data-parallel
END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
YIELD_EVERY = 64  # replayed batches between two turns of the event loop


class EventPublisher(ABC):
    """Made once per worker, before the model loads. Everything runs on the launcher's loop."""

    def __init__(self, config: KvEventsConfig, dp_rank: int, log: KvEventLog) -> None:
        """`config` has the endpoints of this rank; OSError when they cannot be used.

        `log` is there for replays.
        """
        self.config, self.dp_rank, self.log = config, dp_rank, log

    @abstractmethod
    def publish(self, batch: EventBatch) -> None:
        """Called with each batch, in order. Must not wait."""

    @abstractmethod
    def shutdown(self) -> None:
        """Called once; nothing is published afterwards."""


class NullPublisher(EventPublisher):
    """Publishes nothing."""

    def publish(self, batch: EventBatch) -> None:
        """The batch is dropped."""

    def shutdown(self) -> None:
        """There is nothing to end."""


PublisherFactory = Callable[[KvEventsConfig, int, KvEventLog], EventPublisher]


class EventPublisherFactory:
    """Publishers by the name that `--kv-events-config` has under `publisher`."""

    @staticmethod
    def register_publisher(name: str, ctor: PublisherFactory) -> None:
        """A name is taken once: KeyError for the second."""
        if name in EVENT_PUBLISHERS:
            raise KeyError(
                f"The event publisher {name!r} is already registered by "
                f"{EVENT_PUBLISHERS.source(name)}; {source_of(ctor)} must choose another name."
            )
        EVENT_PUBLISHERS.register(name, ctor, source=source_of(ctor))

    @staticmethod
    def create(config: KvEventsConfig, log: KvEventLog, dp_rank: int = RANK) -> EventPublisher:
        """ValueError: nobody registered the name. OSError: the endpoint is not to be had."""
        if config.publisher not in EVENT_PUBLISHERS:
            error = EVENT_PUBLISHERS.unknown(config.publisher)
            raise ValueError(f"--kv-events-config: publisher: {error}")
        publisher = EVENT_PUBLISHERS[config.publisher](config.of_rank(dp_rank), dp_rank, log)
        assert isinstance(publisher, EventPublisher), f"{config.publisher}: {publisher!r}"
        return publisher


class Publishing:
    """Feeds a publisher from the log until ended."""

    def __init__(self, config: KvEventsConfig, log: KvEventLog) -> None:
        self._publisher = EventPublisherFactory.create(config, log)
        self._log, self._max_queued = log, config.max_queue_size
        self._task = asyncio.create_task(self._run()) if config.is_on else None

    async def _run(self) -> None:
        start = 1
        while True:
            try:
                with self._log.subscribe(start, self._max_queued) as subscription:
                    while batch := await subscription.next():
                        self._publish(batch)
            except SlowSubscriber as error:
                logger.warning("KV events are lost, subscribers see a hole: %s.", error)
                start = self._log.last + 1
            except LogClosed:
                return

    def _publish(self, batch: EventBatch) -> None:
        try:
            self._publisher.publish(batch)
        except Exception:  # a plugin's fault must not end the others' events
            logger.exception("KV events: batch %d was not published", batch.sequence)

    async def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._publisher.shutdown()


# ---------------------------------------------------------------- ZMQ


class ZmqEventPublisher(EventPublisher):
    """A PUB socket, and a ROUTER for those who have missed something.

    Frames: topic; sequence number, 8 bytes big-endian, from 0; msgpack `[time, events, rank]`.
    """

    def __init__(self, config: KvEventsConfig, dp_rank: int, log: KvEventLog) -> None:
        super().__init__(config, dp_rank, log)
        self._topic = config.topic.encode()
        self._form = FORM_OF[config.format]
        self._names_topic = config.format == "map"  # in replays, as peers of that layout expect
        self._encoder = msgspec.msgpack.Encoder()
        self._context = zmq.asyncio.Context()
        # Used without asyncio: a PUB socket never waits.
        self._pub = zmq.Socket(zmq.Context.shadow(self._context.underlying), zmq.PUB)
        self._pub.setsockopt(zmq.SNDHWM, config.hwm)
        self._router = self._context.socket(zmq.ROUTER)
        for socket in (self._pub, self._router):
            socket.setsockopt(zmq.LINGER, 0)
        # A whole replay fits (half of the mark may be taken by what is sent already); for a peer
        # that does not read, more than that is dropped.
        self._router.setsockopt(zmq.SNDHWM, 2 * (config.buffer_steps + 2))
        self._answering: asyncio.Task[None] | None = None
        try:
            self._open(config)
        except OSError:
            self.shutdown()
            raise

    def _open(self, config: KvEventsConfig) -> None:
        _attach(self._pub, config.endpoint, "endpoint", bind=config.binds)
        if config.replay_endpoint is not None:
            _attach(self._router, config.replay_endpoint, "replay_endpoint", bind=True)
            self._answering = asyncio.create_task(self._answer_replays())

    def publish(self, batch: EventBatch) -> None:
        self._pub.send_multipart([self._topic, *self._frames(batch)], zmq.NOBLOCK)

    def shutdown(self) -> None:
        if self._answering is not None:
            self._answering.cancel()
        self._pub.close()
        self._router.close()
        self._context.term()

    def _frames(self, batch: EventBatch) -> tuple[bytes, bytes]:
        number = (batch.sequence - 1).to_bytes(8, "big")
        events = [self._form(event) for event in batch.events]
        return number, self._encoder.encode([batch.timestamp, events, self.dp_rank])

    async def _answer_replays(self) -> None:
        while True:
            frames = await self._router.recv_multipart()
            if len(frames) != 3 or frames[1] or len(frames[2]) != 8:
                logger.warning(
                    "KV events: a replay request has %d frames; wanted are an empty one and the "
                    "first sequence number in 8 bytes.", len(frames) - 1,
                )  # fmt: skip
                continue
            await self._replay(frames[0], int.from_bytes(frames[2], "big", signed=True))

    async def _replay(self, peer: bytes, first: int) -> None:
        head = [peer, b"", self._topic] if self._names_topic else [peer, b""]
        for i, batch in enumerate(self.log.replay(first + 1)):
            await self._router.send_multipart([*head, *self._frames(batch)])
            if i % YIELD_EVERY == 0:
                await asyncio.sleep(0)
        await self._router.send_multipart([*head, END_OF_REPLAY, b""])


def _attach(socket: "zmq.Socket[Any]", endpoint: str, key: str, *, bind: bool) -> None:
    try:
        (socket.bind if bind else socket.connect)(endpoint)
    except zmq.ZMQError as error:
        verb = "bound" if bind else "connected to"
        raise OSError(f"--kv-events-config: {key} {endpoint} cannot be {verb}: {error}") from error


def as_array(event: KvEvent) -> list[Any]:
    """The tag, then the fields in a fixed order. It cannot say the namespace of a page."""
    match event:
        case BlockStored():
            head = ["BlockStored", event.block_hashes, event.parent_block_hash]
            return [*head, event.token_ids, event.block_size, None, event.medium]
        case BlockRemoved():
            return ["BlockRemoved", event.block_hashes, event.medium]
        case _:
            return ["AllBlocksCleared"]


def as_map(event: KvEvent) -> dict[str, Any]:
    """The fields by name. `cache_salt` and `lora_name` are there only where pages have them."""
    match event:
        case BlockStored():
            fields = {
                "type": "BlockStored",
                "block_hashes": event.block_hashes,
                "parent_block_hash": event.parent_block_hash,
                "token_ids": event.token_ids,
                "block_size": event.block_size,
                "lora_id": None,
                "medium": event.medium,
            }
            if event.lora_name is not None:
                fields["lora_name"] = event.lora_name
            return fields if event.namespace is None else {**fields, "cache_salt": event.namespace}
        case BlockRemoved():
            return {
                "type": "BlockRemoved",
                "block_hashes": event.block_hashes,
                "medium": event.medium,
            }
        case _:
            return {"type": "AllBlocksCleared"}


FORM_OF: dict[str, Callable[[KvEvent], Any]] = {"array": as_array, "map": as_map}


def describe(config: KvEventsConfig, block_size: int) -> dict[str, Any] | None:
    """What `/server_info` says under `kv_events`: where to subscribe, or None when nowhere."""
    if not config.is_on:
        return None
    host, port = host_and_port(config.endpoint)
    found: dict[str, Any] = {
        "publisher": config.publisher,
        "endpoint": config.endpoint,
        "endpoint_host": host,
        "endpoint_port_base": port,
        "topic": config.topic,
        "format": config.format,
        "block_size": block_size,
        "dp_size": 1,
    }
    if config.replay_endpoint is not None:
        found["replay_endpoint"] = config.replay_endpoint
        found["replay_endpoint_port_base"] = host_and_port(config.replay_endpoint)[1]
    return found
