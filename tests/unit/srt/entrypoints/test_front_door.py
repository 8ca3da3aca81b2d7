"""How the launcher uses the gateway of the wheel."""

import asyncio
import importlib.machinery
import sys
import threading
import types
from typing import Any

import pytest

from sglang.srt.arg_groups.declaration import options_of
from sglang.srt.entrypoints import front_door
from sglang.srt.server_args import ServerArgs, prepare_server_args

SCHEMA = [
    {"flag": "--log-json", "name": "log_json", "env": "SMG_LOG_JSON", "aliases": [],
     "type": "bool", "default": False, "choices": None, "help": "JSON lines", "group": "Logs"},
    {"flag": "--queue-size", "name": "queue_size", "env": "SMG_QUEUE_SIZE", "aliases": ["--q"],
     "type": "int", "default": 100, "choices": None, "help": "Waiting", "group": "Requests"},
    {"flag": "--policy", "name": "policy", "env": "SMG_POLICY", "aliases": [], "type": "str",
     "default": "random", "choices": ["random"], "help": "Choice", "group": "Routing"},
]  # fmt: skip


opened: list["FakeFrontDoor"] = []


class FakeFrontDoor:
    def __init__(self, options: dict[str, Any], worker_socket: str) -> None:
        self.options, self.worker_socket, self.started = options, worker_socket, False
        self.stopped = threading.Event()
        self.failure: Exception | None = None
        opened.append(self)

    def start(self) -> None:
        self.started = True

    def stop(self) -> None:
        self.stopped.set()

    def wait(self) -> None:
        self.stopped.wait()
        if self.failure:
            raise self.failure


@pytest.fixture
def wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType(front_door.WHEEL)
    module.__spec__ = importlib.machinery.ModuleSpec(front_door.WHEEL, None)
    module.option_schema = lambda: SCHEMA  # type: ignore[attr-defined]
    module.FrontDoor = FakeFrontDoor  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, front_door.WHEEL, module)


def test_only_options_that_mean_something_for_one_worker(wheel: None) -> None:
    assert [option.name for option in front_door.front_door_options()] == [
        "log_json", "queue_size",
    ]  # fmt: skip


async def test_only_what_was_set_reaches_the_gateway(
    wheel: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMG_LOG_JSON", "true")
    args = prepare_server_args(
        ["--model-path", "m", "--q", "7", "--port", "5000", "--api-key", "k",
         "--shutdown-grace-period-secs", "9"],
        extra=front_door.front_door_options,
    )  # fmt: skip
    door = await front_door.open_front_door(args, "/x/grpc.sock")
    gateway = opened[-1]
    assert gateway.started and gateway.worker_socket == "/x/grpc.sock"
    assert gateway.options == {
        "log_json": True, "queue_size": 7, "host": "127.0.0.1", "port": 5000,
        "log_level": "info", "api_key": "k", "shutdown_grace_period_secs": 9,
    }  # fmt: skip
    door.stop()


async def test_both_halves_of_a_worker_trace_to_one_collector(wheel: None) -> None:
    args = prepare_server_args(
        ["--model-path", "m", "--enable-trace", "--otlp-traces-endpoint", "collector:4317"]
    )
    door = await front_door.open_front_door(args, "/x/grpc.sock")
    options = opened[-1].options
    assert (options["enable_trace"], options["otlp_traces_endpoint"]) == (True, "collector:4317")
    door.stop()


@pytest.mark.parametrize("failure", [None, RuntimeError("panicked")])
async def test_its_end_is_noticed(wheel: None, failure: Exception | None) -> None:
    door = await front_door.open_front_door(ServerArgs(model_path="m"), "/x")
    opened[-1].failure = failure
    assert not door.ended.is_set()
    door.stop()
    await asyncio.wait_for(door.ended.wait(), 20)
    assert door.error == (str(failure) if failure else None)


def test_the_drain_has_one_limit() -> None:
    """The engine's own option takes the place of the wheel's, so both must mean the same."""
    wheel = pytest.importorskip("sglang_router")
    (theirs,) = [
        entry for entry in wheel.option_schema() if entry["name"] == "shutdown_grace_period_secs"
    ]
    (ours,) = [option for option in options_of(ServerArgs) if option.name == theirs["name"]]
    assert (ours.flag, ours.default, ours.kind) == (theirs["flag"], theirs["default"], int)
    args = prepare_server_args(
        ["--model-path", "m", ours.flag, "3"], extra=front_door.front_door_options
    )
    assert (args.shutdown_grace_period_secs, args.front_door) == (3, {})


async def test_without_the_wheel_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_door, "WHEEL", "no_such_wheel")
    assert list(front_door.front_door_options()) == []
    with pytest.raises(front_door.FrontDoorUnavailable, match="--grpc-mode"):
        await front_door.open_front_door(ServerArgs(model_path="m"), "/x")
