"""Workers of a gateway that runs: added and removed by request, or by SIGHUP and a changed file."""

import json
import signal
from pathlib import Path
from typing import Any

from tests.e2e import processes
from tests.e2e.conftest import Pool
from tests.e2e.processes import SMG, Server, call, until

ADMIN = {"authorization": "Bearer secret"}
ASK = {"text": "hello", "sampling_params": {"max_new_tokens": 2, "temperature": 0}}


def workers(gateway: Server) -> dict[str, Any]:
    listed = call(f"{gateway.url}/workers")[1]["workers"]
    return {worker["url"]: worker for worker in listed}


def test_an_added_worker_serves_until_it_is_removed(pool: Pool, tmp_path: Path) -> None:
    first, second = pool.workers[:2]
    state = tmp_path / "workers.json"
    flags = ("--admin-api-key", "secret", "--worker-state-file", str(state))
    with processes.gateway(tmp_path, [first], *flags, "--policy", "round_robin") as gateway:
        body = {"url": second.grpc_url, "labels": {"zone": "b"}}
        assert call(f"{gateway.url}/workers", body)[0] == 401
        status, added, headers = call(f"{gateway.url}/workers", body, headers=ADMIN)
        assert (status, headers["location"]) == (202, f"/workers/{added['worker_id']}")
        until(lambda: workers(gateway)[second.grpc_url]["is_healthy"])
        assert all(call(f"{gateway.url}/generate", ASK)[0] == 200 for _ in range(4))
        assert json.loads(state.read_text())["workers"][0]["url"] == second.grpc_url
    with processes.gateway(tmp_path, [first], *flags) as gateway:
        worker = workers(gateway)[second.grpc_url]
        assert worker["metadata"]["zone"] == "b"
        path = f"{gateway.url}/workers/{worker['id']}?drain=30"
        assert call(path, method="DELETE", headers=ADMIN)[0] == 202
        until(lambda: list(workers(gateway)) == [first.grpc_url])
        assert json.loads(state.read_text())["workers"] == []


def test_sighup_reads_the_file_again(tmp_path: Path) -> None:
    file = tmp_path / "smg.json"
    ports = [processes.free_port() for _ in range(3)]
    urls = [f"grpc://127.0.0.1:{port}" for port in ports]

    def write(text: str) -> None:
        file.write_text(text)

    write(json.dumps({"worker_urls": urls[:2]}))
    port = processes.free_port()
    command = [SMG, "launch", "--host", "127.0.0.1", "--port", str(port), "--config", file]
    server = processes.start(command, port, tmp_path / "smg.log")
    try:
        server.wait("/liveness")
        assert list(workers(server)) == urls[:2]
        write(json.dumps({"worker_urls": urls[1:], "queue_size": 7}))
        server.process.send_signal(signal.SIGHUP)
        until(lambda: list(workers(server)) == urls[1:])
        assert "queue_size" in server.log_text()
        write("{")
        server.process.send_signal(signal.SIGHUP)
        until(lambda: "cannot be used" in server.log_text())
        assert list(workers(server)) == urls[1:]
    finally:
        assert server.end() == 0
