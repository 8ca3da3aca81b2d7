"""A scheduler that is stopped, and what a worker that was killed leaves behind."""

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e import processes
from tests.e2e.processes import Server, call, until

GUARD = 60.0
SHORT = {"text": "hi", "sampling_params": {"max_new_tokens": 2}}
QUICK = {"SGLANG_HEALTH_CHECK_TIMEOUT": "1"}  # seconds of silence that make a scheduler suspect


def scheduler_of(worker: Server) -> psutil.Process:
    """The child with the model; multiprocessing has small helpers of its own."""
    children = psutil.Process(worker.process.pid).children()
    return max(children, key=lambda child: child.memory_info().rss)


def test_a_stopped_scheduler_is_unhealthy_and_recovers(tmp_path: Path) -> None:
    with processes.front_door(tmp_path, env=QUICK) as server:
        scheduler = scheduler_of(server)
        scheduler.suspend()
        server.wait("/readiness", 503)
        status, reply, _ = call(f"{server.url}/generate", SHORT)
        assert status == 503
        assert reply["error"]["message"]
        scheduler.resume()
        server.wait("/readiness")
        assert call(f"{server.url}/generate", SHORT)[0] == 200


def test_a_scheduler_that_stays_silent_ends_its_worker(tmp_path: Path) -> None:
    with processes.engine(tmp_path, "--watchdog-timeout", "1", env=QUICK) as worker:
        scheduler = scheduler_of(worker)
        scheduler.suspend()
        assert worker.process.wait(GUARD) == 1
        assert "sglang: The scheduler gave no sign of life for 2 s" in worker.log_text()
        assert not scheduler.is_running()


@pytest.fixture
def hang_up_is_heard() -> Iterator[None]:
    """Children inherit that SIGHUP is ignored, where `nohup` runs the tests."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hang_up_is_heard")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_every_ending_signal_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    env = {"TMPDIR": str(scratch)}
    with processes.engine(tmp_path, env=env) as worker:
        assert [path.name[:7] for path in scratch.iterdir()] == ["sglang-"]
        scheduler = scheduler_of(worker)
        assert worker.end(number) == 0
    assert list(scratch.iterdir()) == []
    assert not scheduler.is_running()


def test_the_next_worker_sweeps_up_after_a_killed_one(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    env = {"TMPDIR": str(scratch)}
    with processes.engine(tmp_path, env=env) as worker:
        scheduler = scheduler_of(worker)
        worker.end(signal.SIGKILL)
        until(lambda: not scheduler.is_running())
    [abandoned] = scratch.iterdir()
    with processes.engine(tmp_path, env=env):
        [own] = scratch.iterdir()
        assert own != abandoned
    assert list(scratch.iterdir()) == []
