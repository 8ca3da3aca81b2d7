"""A worker in this process: its scheduler, its thread, and how both end."""

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang.srt.core.messages import GenerateInput, RequestOutput
from sglang.srt.core.sampling_params import SamplingParams
from sglang.srt.entrypoints import engine
from sglang.srt.entrypoints.offline.errors import EngineError, raise_refusal
from sglang.srt.entrypoints.offline.worker import OfflineWorker
from sglang.srt.server_args import ServerArgs
from tests.unit.srt.entrypoints.offline.played_scheduler import (
    ANSWERS,
    DIES,
    REFUSES,
    WAITS,
    launcher,
)

GUARD = 20.0  # seconds after which a test fails instead of hanging


def start(monkeypatch: pytest.MonkeyPatch, **launch: str) -> OfflineWorker:
    monkeypatch.setattr(engine, "_launch_subprocesses", launcher(**launch))
    args = ServerArgs(model_path="dummy")
    args.check_server_args()
    return OfflineWorker(args)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[OfflineWorker]:
    running = start(monkeypatch)
    yield running
    running.shut_down()


async def ask(worker: OfflineWorker, kind: int, rid: str = "r") -> RequestOutput:
    wish = GenerateInput(rid=rid, input_ids=[kind], sampling=SamplingParams().normalized())
    with worker.client.open(rid, [wish]) as stream:
        (output,) = await stream.take()
        raise_refusal(output.finish)
        return output


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_work_is_done_in_the_workers_thread(worker: OfflineWorker) -> None:
    async def where() -> str:
        return threading.current_thread().name

    assert worker.wait(where()) == "sglang-engine"
    assert worker.wait(ask(worker, ANSWERS)).rid == "r"


async def test_work_can_be_awaited_in_another_loop(worker: OfflineWorker) -> None:
    future = asyncio.wrap_future(worker.submit(ask(worker, ANSWERS)))
    assert (await asyncio.wait_for(future, GUARD)).rid == "r"


def test_refusal_is_an_error_of_the_engine(worker: OfflineWorker) -> None:
    with pytest.raises(EngineError, match="no room"):
        worker.wait(ask(worker, REFUSES))


def test_id_that_runs_already_is_the_callers_mistake(worker: OfflineWorker) -> None:
    first = worker.submit(ask(worker, WAITS))
    with pytest.raises(ValueError, match="Duplicate request ID detected: r"):
        worker.wait(ask(worker, WAITS))
    first.cancel()


def test_control_reaches_the_scheduler(worker: OfflineWorker) -> None:
    told = worker.wait(worker.client.control("pause", {"mode": "abort"}))
    assert told == {"name": "pause", "args": {"mode": "abort"}}


def test_cancelled_work_frees_its_id(worker: OfflineWorker) -> None:
    future = worker.submit(ask(worker, WAITS))
    worker.wait(asyncio.sleep(0))
    future.cancel()
    worker.wait(worker.client.idle.wait())
    assert worker.wait(ask(worker, ANSWERS)).rid == "r"


def test_death_ends_what_waits_and_what_comes_later(worker: OfflineWorker) -> None:
    waiting = worker.submit(ask(worker, WAITS, "waits"))
    with pytest.raises(EngineError, match="was killed by SIGKILL"):
        worker.wait(ask(worker, DIES))
    with pytest.raises(EngineError, match="was killed by SIGKILL"):
        waiting.result(GUARD)
    with pytest.raises(EngineError, match="was killed by SIGKILL"):
        worker.wait(ask(worker, ANSWERS, "later"))


def test_model_that_cannot_be_loaded_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = threading.active_count()
    with pytest.raises(EngineError, match="weights are missing"):
        start(monkeypatch, failure="weights are missing")
    assert threading.active_count() == threads


def test_shut_down_leaves_neither_process_nor_thread_nor_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folders = []
    monkeypatch.setattr(engine, "_launch_subprocesses", launcher())
    launch = engine._launch_subprocesses

    def noted(args: ServerArgs, ports: engine.PortArgs) -> engine.SchedulerProcess:
        folders.append(Path(ports.scheduler_input_ipc_name.removeprefix("ipc://")).parent)
        return launch(args, ports)

    monkeypatch.setattr(engine, "_launch_subprocesses", noted)
    threads = threading.active_count()
    args = ServerArgs(model_path="dummy")
    worker = OfflineWorker(args)
    pid = worker.pid
    assert is_alive(pid) and folders[0].is_dir()
    worker.shut_down()
    worker.shut_down()
    assert not is_alive(pid)
    assert not folders[0].exists()
    assert threading.active_count() == threads
    with pytest.raises(EngineError, match="was shut down"):
        worker.wait(ask(worker, ANSWERS))


def test_shut_down_ends_what_waits(worker: OfflineWorker) -> None:
    waiting = worker.submit(ask(worker, WAITS))
    worker.wait(asyncio.sleep(0))
    worker.shut_down()
    with pytest.raises((EngineError, concurrent.futures.CancelledError)):
        waiting.result(GUARD)


def test_work_that_comes_with_the_end_is_ended_too(
    worker: OfflineWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = threading.Thread(target=worker.shut_down)
    schedule = asyncio.run_coroutine_threadsafe

    def late(work: Any, loop: asyncio.AbstractEventLoop) -> Any:
        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", schedule)
        ending.start()
        ending.join(0.5)  # the end has all the time that it needs to come first
        return schedule(work, loop)

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", late)
    waiting = worker.submit(ask(worker, WAITS))
    with pytest.raises((EngineError, concurrent.futures.CancelledError)):
        waiting.result(GUARD)
    ending.join(GUARD)


def test_shut_down_from_the_workers_own_thread_does_not_hang(worker: OfflineWorker) -> None:
    async def drop() -> None:
        worker.shut_down()

    pid = worker.pid
    worker.wait(drop())
    worker.shut_down()  # waits for the other
    assert not is_alive(pid)


def test_two_workers_know_nothing_of_each_other(
    worker: OfflineWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = start(monkeypatch)
    with pytest.raises(EngineError):
        other.wait(ask(other, DIES))
    other.shut_down()
    assert worker.wait(ask(worker, ANSWERS)).rid == "r"
    assert os.getpid() != worker.pid
