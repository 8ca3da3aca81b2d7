"""Real processes for tests: engines, gateways and whole servers, each ended by its own id."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SMG = ROOT / "target/debug/smg"
START_GUARD = 300.0  # seconds: ten times what a start takes on two cores
STOP_GUARD = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def free_port_pair() -> int:
    """A port whose successor is free too (gRPC mode serves metrics there)."""
    for _ in range(100):
        port = free_port()
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port + 1))
            return port
    raise RuntimeError("no two neighbouring ports are free")


@dataclass
class Server:
    """A running process, its address and its log."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def grpc_url(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self, path: str, status: int = 200, port: int | None = None) -> None:
        """Polls until `path` answers `status`; fails with the log when the process ends first."""
        url = f"http://127.0.0.1:{port or self.port}{path}"
        end = time.monotonic() + START_GUARD
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise AssertionError(f"ended with {self.process.returncode}:\n{self.log_text()}")
            if get_status(url) == status:
                return
            time.sleep(0.1)
        raise AssertionError(f"{url} did not answer {status}:\n{self.log_text()}")

    def end(self, sig: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(sig)
        try:
            return self.process.wait(STOP_GUARD)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STOP_GUARD)
            raise AssertionError(f"did not end on signal {sig}:\n{self.log_text()}") from None


def start(
    command: Sequence[str | Path], port: int, log: Path, env: dict[str, str] | None = None
) -> Server:
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
        )  # fmt: skip
    return Server(process, port, log)


@contextlib.contextmanager
def engine(
    folder: Path, *flags: str, name: str = "engine", port: int | None = None, threads: int = 1,
    env: dict[str, str] | None = None,
) -> Iterator[Server]:  # fmt: skip
    """One worker of the demo model that speaks gRPC; ready when entered.

    `port`: the caller's choice; its successor must be free too.
    """
    port = port or free_port_pair()
    server = start(
        [sys.executable, "-m", "sglang.launch_server", "--grpc-mode", "--model-path", "demo",
         "--port", str(port), *flags],
        port, folder / f"{name}-{port}.log", {"OMP_NUM_THREADS": str(threads), **(env or {})},
    )  # fmt: skip
    try:
        server.wait("/health", port=port + 1)
        yield server
    finally:
        server.end()


@contextlib.contextmanager
def gateway(
    folder: Path, workers: Sequence[Server], *flags: str, ready: bool = True
) -> Iterator[Server]:
    """`smg launch` in front of the workers; ready when entered, unless told not to wait."""
    port = free_port()
    urls = [worker.grpc_url for worker in workers]
    server = start(
        [SMG, "launch", "--host", "127.0.0.1", "--port", str(port), "--worker-urls", *urls, *flags],
        port, folder / f"smg-{port}.log",
    )  # fmt: skip
    try:
        server.wait("/readiness" if ready else "/liveness")
        yield server
    finally:
        server.end()


@contextlib.contextmanager
def front_door(
    folder: Path, *flags: str, model: str = "demo", env: dict[str, str] | None = None
) -> Iterator[Server]:
    """`python -m sglang.launch_server`: one worker with its own front door."""
    port = free_port()
    server = start(
        [sys.executable, "-m", "sglang.launch_server", "--model-path", model,
         "--port", str(port), *flags],
        port, folder / f"launch-server-{port}.log", env,
    )  # fmt: skip
    try:
        server.wait("/readiness")
        yield server
    finally:
        server.end()


def until(what: Callable[[], object]) -> None:
    """Returns when `what()` is true; fails when it does not become so."""
    end = time.monotonic() + STOP_GUARD
    while not what():
        assert time.monotonic() < end, "did not happen"
        threading.Event().wait(0.02)


# ------------------------------------------------------------------ plain HTTP


def get_status(url: str) -> int | None:
    """The status, or None where nothing listens."""
    try:
        with urllib.request.urlopen(url, timeout=10) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def call(url: str, body: Any = None, method: str | None = None, raw: bytes | None = None,
         headers: dict[str, str] | None = None,
         timeout: float = 120) -> tuple[int, Any, dict[str, str]]:  # fmt: skip
    """Status, parsed JSON (or text) and headers of one call. `timeout` in seconds guards it."""
    data = raw if raw is not None else (None if body is None else json.dumps(body).encode())
    request = urllib.request.Request(
        url,
        data=data,
        method=method,
        headers={"content-type": "application/json", **(headers or {})},
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as reply:
            return reply.status, _parsed(reply.read()), dict(reply.headers)
    except urllib.error.HTTPError as error:
        return error.code, _parsed(error.read()), dict(error.headers)


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace")


def events(url: str, body: Any) -> list[Any]:
    """All SSE events of a streamed answer, `[DONE]` included as text."""
    request = urllib.request.Request(
        url, data=json.dumps(body).encode(), headers={"content-type": "application/json"}
    )
    found: list[Any] = []
    with urllib.request.urlopen(request, timeout=120) as reply:
        for line in reply:
            if line.startswith(b"data: "):
                found.append(_parsed(line[6:].strip()))
    return found
