"""The scheduler process over real sockets, with the hash model instead of a loaded one."""

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
import zmq

from sglang.srt.core.config import PortArgs, ScheduleConfig, cache_config
from sglang.srt.core.messages import (
    PROTOCOL_VERSION,
    AbortInput,
    ControlInput,
    ControlOutput,
    Failed,
    LoadProgress,
    Ready,
    SchedulerInput,
    SchedulerOutput,
    ShutdownInput,
    StepOutput,
)
from sglang.srt.managers import scheduler as scheduler_module
from sglang.srt.managers.inbox import Inbox
from sglang.srt.mem_cache.memory_pool import KVDims, PoolSizes, build_memory
from sglang.srt.server_args import ServerArgs
from tests.unit.srt.managers.engine import (
    EOS,
    VOCAB,
    HashKV,
    HashModel,
    generate,
    prompt_of,
    reference,
)

TIMEOUT = 30_000  # milliseconds; only a failing test waits so long
DIMS = KVDims(num_layers=1, num_kv_heads=1, head_dim=1, dtype=torch.float32)


class Worker(HashModel):
    """As much of TpModelWorker as the process needs."""

    def __init__(self, server_args: ServerArgs, gpu_id: int, progress: Any) -> None:
        progress(50, 100)
        if server_args.model_path == "missing":
            raise FileNotFoundError("no model at 'missing'")
        self.schedule_config = ScheduleConfig(max_running_requests=8)
        self.cache_config = cache_config(server_args, context_len=256, max_total_tokens=512)
        self.memory = build_memory(DIMS, PoolSizes(512, 1, 8, 256), "cpu")
        self.runner = SimpleNamespace(kv_dims=DIMS, weight_bytes=100, lora_manager=None)
        self.model_config = SimpleNamespace(
            architectures=("Hash",),
            model_type="hash",
            vocab_size=VOCAB,
            eos_token_ids=(EOS,),
            bos_token_id=None,
            pad_token_id=None,
            default_sampling_params={},
        )
        self.is_embedding = False
        super().__init__(self.memory.req_to_token_pool, HashKV(512, 1))

    def release_caches(self) -> None:
        """Keeps nothing."""


class Launcher:
    """The other end of both sockets; the process is a thread here."""

    def __init__(self, folder: Path, model_path: str) -> None:
        self._context = zmq.Context()
        self._push, self._pull = self._context.socket(zmq.PUSH), self._context.socket(zmq.PULL)
        ports = PortArgs.in_folder(str(folder))
        self._push.bind(ports.scheduler_input_ipc_name)
        self._pull.bind(ports.scheduler_output_ipc_name)
        self._pull.setsockopt(zmq.RCVTIMEO, TIMEOUT)
        self._decoder = msgspec.msgpack.Decoder(SchedulerOutput)
        self.error: BaseException | None = None
        self.thread = threading.Thread(
            target=self._run,
            args=(ServerArgs(model_path=model_path, grammar_backend="none"), ports),
        )
        self.thread.start()

    def _run(self, server_args: ServerArgs, ports: PortArgs) -> None:
        try:
            scheduler_module.run_scheduler_process(server_args, ports)
        except SystemExit as error:
            self.error = error

    def send(self, value: SchedulerInput) -> None:
        self._push.send(msgspec.msgpack.encode(value))

    def next(self, kind: type) -> Any:
        """The next message of a kind."""
        while True:
            value = self._decoder.decode(self._pull.recv())
            if isinstance(value, kind):
                return value

    def close(self) -> None:
        self.thread.join()
        self._context.destroy(linger=0)


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(scheduler_module, "TpModelWorker", Worker)
    # Only the main thread may set handlers, and the test's thread is not the process.
    monkeypatch.setattr("sglang.srt.managers.process.signal.getsignal", lambda number: None)
    launchers: list[Launcher] = []

    (tmp_path / "tokenizer.json").write_text("{}")

    def start(model_path: str = str(tmp_path)) -> Launcher:
        launchers.append(Launcher(tmp_path, model_path))
        return launchers[0]

    yield start
    for launcher in launchers:
        launcher.close()


def test_life_of_a_process(launch: Any) -> None:
    launcher = launch()
    assert launcher.next(LoadProgress).done_bytes == 50
    ready = launcher.next(Ready)
    assert ready.protocol_version == PROTOCOL_VERSION
    assert (ready.max_total_num_tokens, ready.max_req_input_len) == (512, 255)
    assert ready.kv_cell_bytes == 8

    launcher.send(generate("a", prompt_of(20), 3))
    tokens: list[int] = []
    while len(tokens) < 3:
        for output in launcher.next(StepOutput).outputs:
            tokens += output.token_ids
    assert tokens == reference(prompt_of(20), 3)

    launcher.send(AbortInput(rids=["a"]))
    launcher.send(ControlInput(id=7, name="flush_cache"))
    assert launcher.next(ControlOutput) == ControlOutput(
        id=7, result={"success": True, "message": "The cache is flushed."}
    )
    launcher.send(ShutdownInput())
    launcher.thread.join()
    assert launcher.error is None


def test_warm_up_leaves_no_trace(launch: Any) -> None:
    launcher = launch()
    launcher.next(Ready)
    launcher.send(ControlInput(id=1, name="loads"))
    load = launcher.next(ControlOutput).result
    assert (load["num_requests_total"], load["prompt_tokens_total"]) == (0, 0)
    assert (load["num_evictable_tokens"], load["num_used_tokens"]) == (0, 0)
    launcher.send(ShutdownInput())


def test_model_that_cannot_load_is_one_sentence_and_an_exit_code(launch: Any) -> None:
    launcher = launch("missing")
    assert launcher.next(Failed).message == "no model at 'missing'"
    launcher.thread.join()
    assert isinstance(launcher.error, SystemExit)
    assert launcher.error.code == 1


def test_readable_descriptor_wakes_an_idle_inbox_up(tmp_path: Path) -> None:
    import os

    context = zmq.Context()
    pull = context.socket(zmq.PULL)
    pull.bind(f"ipc://{tmp_path}/in")
    read_end, write_end = os.pipe()
    inbox = Inbox(pull, wake_fds=[read_end])
    os.write(write_end, b"\0")
    assert inbox.receive(wait=None) == [ShutdownInput()]
    for fd in (read_end, write_end):
        os.close(fd)
    context.destroy(linger=0)


def test_busy_inbox_does_not_wait_and_drains_in_order(tmp_path: Path) -> None:
    context = zmq.Context()
    pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    pull.bind(f"ipc://{tmp_path}/in")
    push.connect(f"ipc://{tmp_path}/in")
    inbox = Inbox(pull)
    assert inbox.receive(wait=0) == []
    sent = [AbortInput(rids=[f"{i}"], message="x") for i in range(5)]
    for value in sent:
        push.send(msgspec.msgpack.encode(value))
    received: list[SchedulerInput] = []
    while len(received) < 5:
        received += inbox.receive(wait=None)
    assert received == sent
    context.destroy(linger=0)
