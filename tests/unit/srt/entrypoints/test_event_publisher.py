"""KV events over real sockets: both layouts, replays, and publishers of plugins."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from sglang.srt.arg_groups.events import KvEventsConfig
from sglang.srt.core.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from sglang.srt.entrypoints import event_publisher
from sglang.srt.entrypoints.event_publisher import (
    EventPublisher,
    EventPublisherFactory,
    NullPublisher,
    Publishing,
    ZmqEventPublisher,
)
from sglang.srt.entrypoints.kv_event_log import EventBatch, KvEventLog
from sglang.srt.extension_points import EVENT_PUBLISHERS

GUARD = 10.0  # seconds
EVENTS = [
    AllBlocksCleared(),
    BlockStored([-5], None, [1, 2], 2),
    BlockStored([6], -5, [3, 4], 2, "CPU_PINNED", "tenant"),
    BlockRemoved([6]),
]
ARRAYS = [
    ["AllBlocksCleared"],
    ["BlockStored", [-5], None, [1, 2], 2, None, "GPU"],
    ["BlockStored", [6], -5, [3, 4], 2, None, "CPU_PINNED"],
    ["BlockRemoved", [6], "GPU"],
]
STORED = {"type": "BlockStored", "block_size": 2, "lora_id": None}
MAPS = [
    {"type": "AllBlocksCleared"},
    {**STORED, "block_hashes": [-5], "parent_block_hash": None, "token_ids": [1, 2],
     "medium": "GPU"},
    {**STORED, "block_hashes": [6], "parent_block_hash": -5, "token_ids": [3, 4],
     "medium": "CPU_PINNED", "cache_salt": "tenant"},
    {"type": "BlockRemoved", "block_hashes": [6], "medium": "GPU"},
]  # fmt: skip


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kv-") as made:  # short: paths of sockets are limited
        yield Path(made)


@pytest.fixture
def context() -> Iterator[zmq.asyncio.Context]:
    made = zmq.asyncio.Context()
    yield made
    made.destroy(linger=0)


def config_in(folder: Path, **keys: Any) -> KvEventsConfig:
    places = {"endpoint": f"ipc://{folder}/pub", "replay_endpoint": f"ipc://{folder}/replay"}
    return KvEventsConfig(publisher="zmq", **{**places, **keys})


@contextlib.asynccontextmanager
async def publishing(config: KvEventsConfig, log: KvEventLog) -> AsyncIterator[None]:
    feed = Publishing(config, log)
    try:
        yield
    finally:
        await feed.end()


async def received(socket: Any) -> list[bytes]:
    frames: list[bytes] = await asyncio.wait_for(socket.recv_multipart(), GUARD)
    return frames


async def subscriber(
    context: zmq.asyncio.Context, endpoint: str, log: KvEventLog, topic: bytes = b""
) -> Any:
    """A SUB socket that gets what is published from now on: it has seen a batch already."""
    socket = context.socket(zmq.SUB)
    socket.subscribe(topic)
    socket.connect(endpoint)
    for _ in range(200):
        log.append([AllBlocksCleared()])
        if await socket.poll(50):
            break
    while await socket.poll(0):
        await received(socket)
    return socket


def number(frame: bytes) -> int:
    assert len(frame) == 8
    return int.from_bytes(frame, "big", signed=True)


@pytest.mark.parametrize(("form", "events"), [("array", ARRAYS), ("map", MAPS)])
async def test_a_batch_is_topic_number_and_payload(
    folder: Path, context: zmq.asyncio.Context, form: str, events: list[Any]
) -> None:
    log = KvEventLog(clock=lambda: 12.5)
    config = config_in(folder, topic="kv@me", format=form)
    async with publishing(config, log):
        socket = await subscriber(context, config.endpoint, log, b"kv@")
        log.append(list(EVENTS))
        topic, sequence, payload = await received(socket)
    assert topic == b"kv@me"
    assert number(sequence) == log.last - 1
    assert msgspec.msgpack.decode(payload) == [12.5, events, 0]


async def test_numbers_have_no_hole(folder: Path, context: zmq.asyncio.Context) -> None:
    log = KvEventLog()
    config = config_in(folder)
    async with publishing(config, log):
        socket = await subscriber(context, config.endpoint, log)
        first = log.last
        for i in range(50):
            log.append([BlockStored([i], None, [i], 1)])
        found = [number((await received(socket))[1]) for _ in range(50)]
    assert found == list(range(first, first + 50))


async def test_endpoint_with_a_host_connects(folder: Path, context: zmq.asyncio.Context) -> None:
    socket = context.socket(zmq.SUB)
    socket.subscribe(b"")
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    log = KvEventLog()
    async with publishing(config_in(folder, endpoint=f"tcp://127.0.0.1:{port}"), log):
        for _ in range(200):
            log.append([AllBlocksCleared()])
            if await socket.poll(50):
                break
        topic, _, _ = await received(socket)
    assert topic == b""


@pytest.mark.parametrize(("form", "topic"), [("array", []), ("map", [b"kv"])])
async def test_replay_goes_from_the_number_to_the_end(
    folder: Path, context: zmq.asyncio.Context, form: str, topic: list[bytes]
) -> None:
    log = KvEventLog(buffer_steps=200)
    for i in range(300):
        log.append([BlockStored([i], None, [i], 1)])
    config = config_in(folder, topic="kv", format=form, buffer_steps=200)
    async with publishing(config, log):
        socket = context.socket(zmq.DEALER)
        socket.connect(config.replay_endpoint)
        for start, expected in ((297, [297, 298, 299]), (0, list(range(100, 300))), (300, [])):
            await socket.send_multipart([b"", start.to_bytes(8, "big")])
            found = []
            while True:
                empty, *head, sequence, payload = await received(socket)
                assert (empty, head) == (b"", topic)
                if number(sequence) == -1:
                    assert payload == b""
                    break
                blocks = [e[1] if form == "array" else e["block_hashes"]
                          for e in msgspec.msgpack.decode(payload)[1]]  # fmt: skip
                assert blocks == [[number(sequence)]]
                found.append(number(sequence))
            assert found == expected


async def test_malformed_replay_request_is_passed_over(
    folder: Path, context: zmq.asyncio.Context
) -> None:
    log = KvEventLog()
    config = config_in(folder)
    async with publishing(config, log):
        socket = context.socket(zmq.DEALER)
        socket.connect(config.replay_endpoint)
        for request in ([b"", b"7"], [b"hello"], [b"", b"", b""], [b"", bytes(8)]):
            await socket.send_multipart(request)
        frames = await received(socket)
        assert number(frames[-2]) == -1
        assert not await socket.poll(0)


@pytest.mark.parametrize("key", ["endpoint", "replay_endpoint"])
async def test_endpoint_that_is_taken_is_named_and_nothing_stays_open(
    folder: Path, context: zmq.asyncio.Context, key: str
) -> None:
    holder = context.socket(zmq.PUB)
    port = holder.bind_to_random_port("tcp://127.0.0.1")
    taken = config_in(folder, bind=True, **{key: f"tcp://127.0.0.1:{port}"})
    with pytest.raises(OSError, match=f"--kv-events-config: {key} tcp://.* cannot be bound"):
        ZmqEventPublisher(taken, 0, KvEventLog())
    async with publishing(config_in(folder), KvEventLog()):
        pass  # the other endpoint is free again


async def test_publisher_that_is_overrun_leaves_a_hole_and_goes_on() -> None:
    class Slow(EventPublisher):
        seen: list[int] = []

        def publish(self, batch: EventBatch) -> None:
            self.seen.append(batch.sequence)

        def shutdown(self) -> None:
            self.seen.append(-1)

    log = KvEventLog()
    EventPublisherFactory.register_publisher("slow", Slow)
    try:
        async with publishing(KvEventsConfig(publisher="slow", max_queue_size=2), log):
            await asyncio.sleep(0)
            for _ in range(5):  # the loop has no turn in between
                log.append([AllBlocksCleared()])
            for _ in range(10):
                await asyncio.sleep(0)
            log.append([AllBlocksCleared()])
            for _ in range(10):
                await asyncio.sleep(0)
        assert Slow.seen == [6, -1]
    finally:
        del EVENT_PUBLISHERS["slow"]


async def test_fault_of_a_publisher_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    class Faulty(NullPublisher):
        seen: list[int] = []

        def publish(self, batch: EventBatch) -> None:
            self.seen.append(batch.sequence)
            raise RuntimeError("a mistake")

    log = KvEventLog()
    EventPublisherFactory.register_publisher("faulty", Faulty)
    try:
        async with publishing(KvEventsConfig(publisher="faulty"), log):
            for _ in range(2):
                log.append([AllBlocksCleared()])
            for _ in range(10):
                await asyncio.sleep(0)
        assert Faulty.seen == [1, 2]
        assert "batch 2 was not published" in caplog.text
    finally:
        del EVENT_PUBLISHERS["faulty"]


def test_names_are_taken_once() -> None:
    with pytest.raises(KeyError, match="'zmq' is already registered by"):
        EventPublisherFactory.register_publisher("zmq", NullPublisher)


async def test_names_that_nobody_registered_are_refused() -> None:
    with pytest.raises(ValueError, match="publisher: Unknown event publisher 'zmp'.*'zmq'"):
        EventPublisherFactory.create(KvEventsConfig(publisher="zmp"), KvEventLog())


def test_built_in_publishers() -> None:
    assert EVENT_PUBLISHERS["null"] is NullPublisher
    assert EVENT_PUBLISHERS["zmq"] is ZmqEventPublisher


def test_description_says_where_to_subscribe() -> None:
    assert event_publisher.describe(KvEventsConfig(), 16) is None
    config = KvEventsConfig(publisher="zmq", replay_endpoint="tcp://*:5600", topic="t")
    assert event_publisher.describe(config, 16) == {
        "publisher": "zmq", "endpoint": "tcp://*:5557", "endpoint_host": "*",
        "endpoint_port_base": 5557, "topic": "t", "format": "array", "block_size": 16,
        "dp_size": 1, "replay_endpoint": "tcp://*:5600", "replay_endpoint_port_base": 5600,
    }  # fmt: skip
