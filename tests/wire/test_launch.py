"""The life of a worker's processes, with a played scheduler process."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from sglang.srt.entrypoints import wire
from tests.wire.fake_scheduler import GUARD, generate_request, write_tokenizer_files
from tests.wire.rpc_client import Client

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    """A port whose successor is free too."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                second.bind(("127.0.0.1", port + 1))
                return int(port)


@dataclass
class Launched:
    """A launcher as a process."""

    process: subprocess.Popen[str]
    port: int
    folder: Path

    def health(self) -> tuple[int | None, str]:
        try:
            url = f"http://127.0.0.1:{self.port + 1}/health"
            with urllib.request.urlopen(url, timeout=GUARD) as reply:
                return reply.status, ""
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return None, ""

    def until(self, wanted: int | None) -> None:
        end = time.monotonic() + GUARD
        while self.health()[0] != wanted:
            assert time.monotonic() < end, f"health never became {wanted}"
            assert wanted is None or self.process.poll() is None, self.process.communicate()
            threading.Event().wait(0.02)

    def scheduler(self) -> psutil.Process:
        children = psutil.Process(self.process.pid).children()
        (found,) = [c for c in children if "spawn_main" in " ".join(c.cmdline())]
        return found

    def output(self) -> tuple[str, str]:
        return self.process.communicate(timeout=GUARD)


def launch(folder: Path, *flags: str, **variables: str) -> Launched:
    port = free_port()
    command = [
        sys.executable, "-m", "tests.wire.launch_driver", "--grpc-mode", "--port", str(port),
        "--model-path", str(folder), *flags,
    ]  # fmt: skip
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **variables}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    return Launched(process, port, folder)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_tokenizer_files(tmp_path)
    return tmp_path


@contextlib.contextmanager
def running(folder: Path, *flags: str, **variables: str) -> Iterator[Launched]:
    launched = launch(folder, *flags, **variables)
    try:
        launched.until(200)
        yield launched
    finally:
        launched.process.kill()
        launched.process.communicate()


@contextlib.asynccontextmanager
async def client(launched: Launched) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{launched.port}") as channel:
        yield Client(channel, wire.SCHEDULER_SERVICE)


async def test_serves_and_ends_without_leftovers(model: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    flags = ["--weight-version", "quick", "--log-level", "warning"]
    with running(model, *flags, TMPDIR=str(scratch)) as launched:
        child = launched.scheduler()
        async with client(launched) as rpc:
            messages = [m async for m in rpc.Generate(generate_request("a", stream=False))]
        assert list(messages[0].complete.output_ids) == [1, 2]
        launched.process.send_signal(signal.SIGTERM)
        out, err = launched.output()
        assert launched.process.returncode == 0, err
        assert err == ""
        ready, end = out.splitlines()
        assert ready.startswith("Ready after ") and f"grpc://127.0.0.1:{launched.port} " in ready
        assert end == "heavy modules: []"
    assert not child.is_running()
    assert list(scratch.iterdir()) == []


async def test_sigterm_lets_running_requests_finish(model: Path) -> None:
    with running(model) as launched:
        async with client(launched) as rpc:
            call = rpc.Generate(generate_request("a"))
            assert list((await call.read()).chunk.token_ids) == [1]
            launched.process.send_signal(signal.SIGTERM)
            launched.until(503)
            assert "shutting down" in launched.health()[1]
            (model / "go").touch()
            assert list((await call.read()).chunk.token_ids) == [2]
            assert (await call.read()).complete.finish_reason == "length"
        launched.output()
        assert launched.process.returncode == 0


async def test_requests_that_take_too_long_are_aborted(model: Path) -> None:
    with running(model, "--shutdown-grace-period-secs", "0") as launched:
        async with client(launched) as rpc:
            call = rpc.Generate(generate_request("a"))
            await call.read()
            launched.process.send_signal(signal.SIGTERM)
            done = (await call.read()).complete
        assert (done.finish_reason, done.abort_message) == ("abort", "The worker is shutting down")
        launched.output()
        assert launched.process.returncode == 0


async def test_second_signal_ends_at_once_without_leftovers(model: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    with running(model, TMPDIR=str(scratch)) as launched:
        assert [path.name[:7] for path in scratch.iterdir()] == ["sglang-"]
        child = launched.scheduler()
        async with client(launched) as rpc:
            call = rpc.Generate(generate_request("a"))
            await call.read()
            launched.process.send_signal(signal.SIGTERM)
            launched.until(503)
            launched.process.send_signal(signal.SIGINT)
            launched.output()
        assert launched.process.returncode == 128 + signal.SIGINT
        child.wait(GUARD)
    assert list(scratch.iterdir()) == []


async def test_dead_scheduler_ends_the_worker_with_a_sentence(model: Path) -> None:
    with running(model) as launched:
        async with client(launched) as rpc:
            call = rpc.Generate(generate_request("a"))
            await call.read()
            launched.scheduler().kill()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await asyncio.wait_for(call.read(), GUARD)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "SIGKILL" in caught.value.details()
        _, err = launched.output()
        assert launched.process.returncode == 1
        assert "sglang: The scheduler process" in err and "SIGKILL" in err


def test_killed_launcher_takes_its_scheduler_along(model: Path) -> None:
    with running(model) as launched:
        child = launched.scheduler()
        launched.process.kill()
        child.wait(GUARD)


def test_signals_to_the_group_are_the_launchers_matter(model: Path) -> None:
    with running(model, "--weight-version", "quick") as launched:
        launched.scheduler().send_signal(signal.SIGTERM)
        launched.scheduler().send_signal(signal.SIGINT)
        launched.process.send_signal(signal.SIGINT)
        _, err = launched.output()
        assert launched.process.returncode == 0, err


@pytest.mark.parametrize(
    ("behaviour", "sentence", "traceback"),
    [("broken", "sglang: the weights lack a tensor", False), ("bug", "ended with code 1", True)],
)
def test_failed_start_says_why(model: Path, behaviour: str, sentence: str, traceback: bool) -> None:
    launched = launch(model, "--weight-version", behaviour)
    _, err = launched.output()
    assert launched.process.returncode == 1
    assert sentence in err
    assert ("Traceback" in err) is traceback
    assert "never retrieved" not in err


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.wire.launch_driver", *flags],
        cwd=ROOT, capture_output=True, text=True, timeout=GUARD, check=False,
    )  # fmt: skip


def one_sentence(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert done.returncode != 0
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    for part in parts:
        assert part in done.stderr


def test_port_in_use_is_one_sentence(model: Path) -> None:
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port + 1))
        taken.listen()
        for flags in (["--port", str(port + 1)], ["--grpc-mode", "--port", str(port)]):
            done = run("--model-path", str(model), *flags)
            one_sentence(done, str(port + 1), "in use", "--port")


def test_missing_files_are_one_sentence(model: Path) -> None:
    one_sentence(run("--model-path", "no/such/model.gguf"), "no/such/model.gguf", "demo")
    one_sentence(
        run("--model-path", str(model), "--chat-template", "no.jinja"),
        "--chat-template",
        "no.jinja",
    )


def test_wrong_default_sampling_is_one_sentence(model: Path) -> None:
    flags = ["--model-path", str(model), "--preferred-sampling-params"]
    one_sentence(run(*flags, '{"temprature": 5}'), flags[-1], "did you mean 'temperature'?")
    one_sentence(run(*flags, '{"temperature": -3}'), flags[-1], "temperature must be", "-3")
