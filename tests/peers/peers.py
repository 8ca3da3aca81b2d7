"""The published gateways as processes, and a worker built from the published stubs."""

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.e2e import processes
from tests.e2e.processes import ROOT, Server

PEERS = ROOT / ".make/peers.d"
# name → (program, environment)
GATEWAYS = {
    "smg 1.13.0": (PEERS / "smg/bin/smg", {}),
    "sglang-router 0.3.2": (
        PEERS / "sglang-router/bin/sglang-router",
        {"TIKTOKEN_ENCODINGS_BASE": str(PEERS / "tiktoken")},
    ),
}


@contextlib.contextmanager
def published_gateway(
    name: str, folder: Path, *workers: Server, policy: str = "round_robin", ready: bool = True
) -> Iterator[Server]:
    """A published gateway in front of workers of ours."""
    program, env = GATEWAYS[name]
    port = processes.free_port()
    server = processes.start(
        [program, "launch", "--host", "127.0.0.1", "--port", str(port),
         "--prometheus-port", str(processes.free_port()), "--prometheus-host", "127.0.0.1",
         "--worker-urls", *(worker.grpc_url for worker in workers), "--policy", policy,
         "--worker-startup-check-interval", "1"],
        port, folder / f"{name.split()[0]}-{port}.log", env,
    )  # fmt: skip
    try:
        server.wait("/readiness" if ready else "/liveness")
        yield server
    finally:
        server.end()


@contextlib.contextmanager
def stub_worker(folder: Path, tokenizer: Path, *flags: str) -> Iterator[Server]:
    """The scripted worker of `stub_worker.py`, run by the interpreter that has the stubs."""
    port = processes.free_port()
    log = folder / f"stub-{port}.log"
    script = ROOT / "tests/peers/stub_worker.py"
    command: Sequence[str | Path] = [
        PEERS / "stubs/bin/python", script, "--port", str(port), "--tokenizer", tokenizer, *flags,
    ]  # fmt: skip
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(part) for part in command], stdout=subprocess.PIPE, stderr=out, env=os.environ
        )
    assert process.stdout
    assert process.stdout.readline().strip() == b"ready", log.read_text()
    server = Server(process, port, log)
    try:
        yield server
    finally:
        server.end()
