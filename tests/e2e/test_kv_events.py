"""What subscribers believe to be cached is what the engine has cached."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
import zmq

from sglang.srt.entrypoints import wire
from tests.e2e import processes
from tests.e2e.processes import Server, until

PAGE = 4
POOL = 400  # tokens: a few requests fill it
GUARD_MS = 30_000


@dataclass
class View:
    """Pages by hash: parent and ids."""

    pages: dict[int, tuple[int | None, list[int]]] = field(default_factory=dict)
    num_removed: int = 0

    def store(self, this: int, parent: int | None, ids: list[int]) -> None:
        assert len(ids) == PAGE
        assert this not in self.pages
        assert parent is None or parent in self.pages
        self.pages[this] = (parent, ids)

    def remove(self, this: int) -> None:
        del self.pages[this]
        self.num_removed += 1

    def prompt_of(self, this: int) -> list[int]:
        parent, ids = self.pages[this]
        return ids if parent is None else self.prompt_of(parent) + ids

    @property
    def num_tokens(self) -> int:
        return PAGE * len(self.pages)


class GrpcSubscriber:
    """A call of `SubscribeKvEvents`."""

    def __init__(self, channel: grpc.Channel, start: int = 0) -> None:
        subscribe = stub(channel, "SubscribeKvEvents")
        request = wire.common("SubscribeKvEventsRequest")(start_sequence_number=start)
        self.view, self.last = View(), 0
        self._call = subscribe(request, timeout=300)

    def next(self) -> Any:
        """The next message, applied. One comes each second at least."""
        message = next(self._call)
        if message.HasField("snapshot"):
            assert message.snapshot.unknown_before == 0
        elif not message.load.load_only:
            assert message.sequence_number == self.last + 1
        self.last = message.sequence_number
        for event in message.events:
            self._apply(event)
        return message

    def catch_up(self) -> View:
        """Until nothing happens: the next message is a load alone."""
        while not self.next().load.load_only:
            pass
        return self.view

    def _apply(self, event: Any) -> None:
        match event.WhichOneof("data"):
            case "cleared":
                self.view.pages.clear()
            case "removed":
                for this in event.removed.block_hashes:
                    self.view.remove(this)
            case "stored":
                stored = event.stored
                has_parent = stored.HasField("parent_block_hash")
                parent = stored.parent_block_hash if has_parent else None
                for block in stored.blocks:
                    self.view.store(block.block_hash, parent, list(block.token_ids))
                    parent = block.block_hash


class ZmqSubscriber:
    """Joins late: what it has missed comes from the replay socket."""

    def __init__(self, context: "zmq.Context[Any]", endpoint: str, replay: str) -> None:
        self.view, self.last = View(), -1
        self._live, self._replay = context.socket(zmq.SUB), context.socket(zmq.DEALER)
        for socket in (self._live, self._replay):
            socket.setsockopt(zmq.RCVTIMEO, GUARD_MS)
            socket.setsockopt(zmq.RCVHWM, 0)
        self._live.subscribe(b"kv")
        self._live.connect(endpoint)
        self._replay.connect(replay)

    def catch_up(self, sequence: int) -> View:
        """Up to that number, by replay and then by what was published."""
        self._replay.send_multipart([b"", (self.last + 1).to_bytes(8, "big")])
        while True:
            _, number, payload = self._replay.recv_multipart()
            if int.from_bytes(number, "big", signed=True) == -1:
                break
            self._take(number, payload)
        while self.last < sequence:
            topic, number, payload = self._live.recv_multipart()
            assert topic == b"kv"
            self._take(number, payload)
        return self.view

    def follow(self, sequence: int) -> View:
        """By what was published alone."""
        while self.last < sequence:
            _, number, payload = self._live.recv_multipart()
            self._take(number, payload)
        return self.view

    def _take(self, number: bytes, payload: bytes) -> None:
        sequence = int.from_bytes(number, "big", signed=True)
        if sequence <= self.last:
            return
        assert sequence == self.last + 1
        self.last = sequence
        _, events, rank = msgspec.msgpack.decode(payload)
        assert rank == 0
        for tag, *fields in events:
            match tag:
                case "BlockStored":
                    (this,), parent, ids, *_ = fields
                    self.view.store(this, parent, ids)
                case "BlockRemoved":
                    (this,), medium = fields
                    assert medium == "GPU"
                    self.view.remove(this)
                case "AllBlocksCleared":
                    self.view.pages.clear()


def stub(channel: grpc.Channel, name: str) -> Any:
    method = wire.pool().FindServiceByName(wire.SCHEDULER_SERVICE).methods_by_name[name]
    make = channel.unary_stream if method.server_streaming else channel.unary_unary
    return make(
        f"/{wire.SCHEDULER_SERVICE}/{name}",
        request_serializer=wire.message(method.input_type.full_name).SerializeToString,
        response_deserializer=wire.message(method.output_type.full_name).FromString,
    )


def generate(channel: grpc.Channel, rid: str, ids: list[int], num_tokens: int = 4) -> Any:
    """The end of the answer."""
    request = wire.scheduler("GenerateRequest")(request_id=rid, logprob_start_len=-1)
    request.tokenized.input_ids.extend(ids)
    request.sampling_params.max_new_tokens = num_tokens
    request.sampling_params.ignore_eos = True
    *_, last = stub(channel, "Generate")(request, timeout=120)
    return last.complete


def cached_tokens(channel: grpc.Channel) -> int:
    """What the scheduler says it keeps, when nothing runs."""
    info = stub(channel, "GetServerInfo")(wire.scheduler("GetServerInfoRequest")(), timeout=30)
    state = dict(info.scheduler_info["internal_states"][0])
    assert state["num_running_reqs"] == 0
    return int(state["num_evictable_tokens"])


@dataclass
class Published:
    server: Server
    channel: grpc.Channel
    endpoint: str
    replay: str


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    first, second = processes.free_port(), processes.free_port()
    config = {
        "publisher": "zmq", "endpoint": f"tcp://*:{first}", "topic": "kv",
        "replay_endpoint": f"tcp://127.0.0.1:{second}",
    }  # fmt: skip
    folder = tmp_path_factory.mktemp("kv-events")
    flags = ["--page-size", str(PAGE), "--max-total-tokens", str(POOL)]
    with (
        processes.engine(folder, *flags, "--kv-events-config", json.dumps(config)) as server,
        grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        yield Published(server, channel, f"tcp://127.0.0.1:{first}", f"tcp://127.0.0.1:{second}")


@pytest.fixture
def late(published: Published) -> Iterator[ZmqSubscriber]:
    context: zmq.Context[Any] = zmq.Context()
    try:
        yield ZmqSubscriber(context, published.endpoint, published.replay)
    finally:
        context.destroy(linger=0)


def prompt(number: int, length: int = 60) -> list[int]:
    """Half of the prompts begin alike, and branch inside a page."""
    shared = [1000 + i for i in range(30)] if number % 2 else []
    return (shared + [2000 + 100 * number + i for i in range(length)])[:length]


def test_every_view_equals_the_cache(published: Published, late: ZmqSubscriber) -> None:
    channel = published.channel
    follower = GrpcSubscriber(channel)
    follower.catch_up()
    for number in range(10):
        generate(channel, f"traffic-{number}", prompt(number))
    truth = cached_tokens(channel)
    assert 0 < truth <= POOL
    view = follower.catch_up()
    assert view.num_removed > 0, "the pool is too small for all prompts"
    assert view.num_tokens == truth
    assert GrpcSubscriber(channel).catch_up().pages == view.pages
    assert GrpcSubscriber(channel, start=1).catch_up().pages == view.pages
    assert late.catch_up(follower.last - 1).pages == view.pages

    # What the view says is what the engine reuses.
    for this in list(view.pages)[:: max(len(view.pages) // 5, 1)]:
        ids = follower.catch_up().prompt_of(this)
        done = generate(channel, f"probe-{this}", [*ids, 7], num_tokens=1)
        assert done.cached_tokens == len(ids)

    flushed = stub(channel, "FlushCache")(wire.common("FlushCacheRequest")(timeout_s=5), timeout=30)
    assert flushed.success
    assert cached_tokens(channel) == 0
    assert follower.catch_up().pages == {}
    assert late.follow(follower.last - 1).pages == {}


def test_server_info_says_where_to_subscribe(published: Published) -> None:
    control = wire.engine("ControlRequest")(name="server_info")
    method = wire.pool().FindServiceByName(wire.ENGINE_SERVICE).methods_by_name["Control"]
    call = published.channel.unary_unary(
        f"/{wire.ENGINE_SERVICE}/Control",
        request_serializer=wire.message(method.input_type.full_name).SerializeToString,
        response_deserializer=wire.message(method.output_type.full_name).FromString,
    )
    found = json.loads(call(control, timeout=30).json)["kv_events"]
    assert found["publisher"] == "zmq" and found["endpoint_host"] == "*"
    assert published.endpoint.endswith(f":{found['endpoint_port_base']}")
    assert published.replay.endswith(f":{found['replay_endpoint_port_base']}")
    assert (found["topic"], found["block_size"], found["dp_size"]) == ("kv", PAGE, 1)


def test_subscriber_does_not_hold_up_the_end_of_the_worker(tmp_path: Path) -> None:
    with processes.engine(tmp_path) as server:
        with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            subscriber = GrpcSubscriber(channel)
            subscriber.next()
            server.process.terminate()
            with pytest.raises(grpc.RpcError) as caught:
                while True:
                    subscriber.next()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "shutting down" in caught.value.details()
        until(lambda: server.process.poll() is not None)
        assert server.process.returncode == 0


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"endpoint": "tcp://*:PORT"}, "endpoint tcp://*:PORT cannot be bound: Address already"),
        ({"publisher": "zmp"}, "publisher: Unknown event publisher 'zmp'"),
    ],
)
def test_what_cannot_be_published_ends_the_start_with_a_sentence(
    tmp_path: Path, wrong: dict[str, str], sentence: str
) -> None:
    context: zmq.Context[Any] = zmq.Context()
    taken = context.socket(zmq.PUB)
    port = taken.bind_to_random_port("tcp://*")
    config = json.dumps({"publisher": "zmq", **wrong}).replace("PORT", str(port))
    grpc_port = processes.free_port_pair()
    server = processes.start(
        [sys.executable, "-m", "sglang.launch_server", "--model-path", "demo",
         "--grpc-mode", "--port", str(grpc_port), "--kv-events-config", config],
        grpc_port, tmp_path / "log",
    )  # fmt: skip
    try:
        until(lambda: server.process.poll() is not None)
        assert server.process.returncode == 1
        assert f"--kv-events-config: {sentence}".replace("PORT", str(port)) in server.log_text()
    finally:
        server.end()
        context.destroy(linger=0)
