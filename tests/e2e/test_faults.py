"""Clients that leave, workers that die, signals: nothing is lost, nothing hangs."""

import http.client
import json
import signal
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.e2e import processes
from tests.e2e.conftest import Pool
from tests.e2e.processes import Server, call, events, until

GUARD = 60.0
LONG = {"max_new_tokens": 4000, "ignore_eos": True, "temperature": 0}


def loads(worker_or_gateway: Server) -> dict[str, int]:
    status, reply, _ = call(f"{worker_or_gateway.url}/v1/loads")
    assert status == 200
    names = ("num_running_reqs", "num_waiting_reqs")
    return {name: sum(load[name] for load in reply["loads"]) for name in names}


def internal_state(server: Server) -> dict[str, float]:
    return call(f"{server.url}/server_info")[1]["internal_states"][0]


def is_idle(server: Server) -> bool:
    return loads(server) == {"num_running_reqs": 0, "num_waiting_reqs": 0}


def post_and_keep(server: Server, body: dict) -> socket.socket:
    """Sends a request and returns the open connection without reading."""
    raw = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", server.port))
    head = (
        "POST /generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(raw)}\r\n\r\n"
    )
    connection.sendall(head.encode() + raw)
    return connection


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A gateway before a worker that computes one request at a time, in small chunks."""
    folder = tmp_path_factory.mktemp("narrow")
    flags = ["--max-running-requests", "1", "--chunked-prefill-size", "64"]
    with (
        processes.engine(folder, *flags) as worker,
        processes.gateway(folder, [worker]) as gateway,
    ):
        yield gateway


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("phase", ["queued", "prefill", "decode"])
def test_a_client_that_leaves_is_gone_from_the_scheduler(
    narrow: Server, phase: str, stream: bool
) -> None:
    until(lambda: is_idle(narrow))
    status, reply, _ = call(f"{narrow.url}/flush_cache", method="POST", raw=b"")
    assert status == 200, reply
    start = internal_state(narrow)

    def grown(name: str) -> float:
        return internal_state(narrow)[name] - start[name]

    blocker = None
    if phase == "queued":
        blocker = post_and_keep(narrow, {"text": "wait", "sampling_params": LONG, "stream": True})
        until(lambda: loads(narrow)["num_running_reqs"] == 1)
    prompt = [7] * 7000 if phase == "prefill" else [7] * 8
    params = {**LONG, "max_new_tokens": 1000}
    leaver = post_and_keep(
        narrow, {"input_ids": prompt, "sampling_params": params, "stream": stream}
    )
    key = "num_waiting_reqs" if phase == "queued" else "num_running_reqs"
    until(lambda: loads(narrow)[key] == 1)
    if phase == "decode":
        until(lambda: grown("generation_tokens_total") > 2)
    before = internal_state(narrow)["generation_tokens_total"]
    leaver.close()
    until(lambda: loads(narrow)[key] == 0)
    if blocker:
        assert loads(narrow)["num_running_reqs"] == 1  # nobody else was harmed
        blocker.close()
    until(lambda: is_idle(narrow))
    assert grown("num_aborted_requests_total") == (2 if blocker else 1)
    state = internal_state(narrow)
    assert state["num_used_tokens"] == 0
    if phase == "prefill":
        assert grown("generation_tokens_total") == 0
    if phase == "decode":
        assert state["generation_tokens_total"] - before < 200  # of the 1,000 it asked for


def test_killed_worker_gives_an_error_event_and_the_next_request_goes_on(tmp_path) -> None:
    with (
        processes.engine(tmp_path, name="one") as one,
        processes.engine(tmp_path, name="two") as two,
        processes.gateway(tmp_path, [one, two], "--policy", "round_robin") as gateway,
    ):
        body = {"text": "tell me", "sampling_params": LONG, "stream": True}
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=GUARD)
        connection.request(
            "POST", "/generate", json.dumps(body), {"content-type": "application/json"}
        )
        reply = connection.getresponse()
        assert reply.readline().startswith(b"data: ")
        busy = one if internal_running(gateway, one) else two
        busy.process.send_signal(signal.SIGKILL)
        rest = reply.read().decode()
        lines = [line[6:] for line in rest.splitlines() if line.startswith("data: ")]
        assert lines[-1] == "[DONE]"
        assert "error" in json.loads(lines[-2])
        for _ in range(4):
            status, answer, _ = call(
                f"{gateway.url}/generate", {"text": "hi", "sampling_params": {"max_new_tokens": 2}}
            )
            assert status == 200, answer


def test_readiness_turns_as_soon_as_the_worker_is_dead(tmp_path) -> None:
    # Probes come too seldom to be what notices.
    seldom = ("--health-check-interval-secs", "3600")
    with (
        processes.engine(tmp_path) as worker,
        processes.gateway(tmp_path, [worker], *seldom) as gateway,
    ):
        assert processes.get_status(f"{gateway.url}/readiness") == 200
        worker.process.send_signal(signal.SIGKILL)
        until(lambda: processes.get_status(f"{gateway.url}/readiness") == 503)


def internal_running(gateway: Server, worker: Server) -> bool:
    workers = call(f"{gateway.url}/workers")[1]["workers"]
    [entry] = [w for w in workers if w["url"] == worker.grpc_url]
    return bool(entry["load"])


def test_sigterm_drains_the_gateway(pool: Pool, tmp_path) -> None:
    with processes.gateway(tmp_path, pool.workers) as gateway:
        body = {"text": "count", "sampling_params": {"max_new_tokens": 64, "ignore_eos": True}}
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=GUARD)
        connection.request(
            "POST", "/generate", json.dumps({**body, "stream": True}),
            {"content-type": "application/json"},
        )  # fmt: skip
        reply = connection.getresponse()
        reply.readline()
        gateway.process.send_signal(signal.SIGTERM)
        lines = [line for line in reply.read().decode().splitlines() if line.startswith("data: ")]
        assert lines[-1] == "data: [DONE]"
        assert json.loads(lines[-2][6:])["meta_info"]["completion_tokens"] == 64
        assert gateway.process.wait(GUARD) == 0


def test_sigterm_drains_the_worker(tmp_path) -> None:
    with (
        processes.engine(tmp_path) as worker,
        processes.gateway(tmp_path, [worker]) as gateway,
    ):
        found: list = []
        body = {"text": "count", "stream": True,
                "sampling_params": {"max_new_tokens": 200, "ignore_eos": True}}  # fmt: skip
        asking = threading.Thread(
            target=lambda: found.extend(events(f"{gateway.url}/generate", body))
        )
        asking.start()
        until(lambda: loads(gateway)["num_running_reqs"] == 1)
        worker.process.send_signal(signal.SIGTERM)
        asking.join(GUARD)
        assert found[-1] == "[DONE]"
        assert found[-2]["meta_info"]["completion_tokens"] == 200
        assert worker.process.wait(GUARD) == 0


def test_readiness_is_the_truth(tmp_path) -> None:
    with processes.gateway(
        tmp_path, [Server(None, processes.free_port(), tmp_path)], ready=False
    ) as gateway:
        assert processes.get_status(f"{gateway.url}/health") == 200
        assert processes.get_status(f"{gateway.url}/liveness") == 200
        assert processes.get_status(f"{gateway.url}/readiness") == 503
        assert processes.get_status(f"{gateway.url}/health_generate") == 503
        status, reply, headers = call(f"{gateway.url}/generate", {"text": "hi"})
        assert status == 503
        assert reply["error"]["message"]
        assert "Retry-After" in {name.title() for name in headers}


def test_caller_chosen_ids_end_exactly_their_request(pool: Pool) -> None:
    kept = post_and_keep(
        pool.gateway, {"text": "a", "rid": "job-10", "sampling_params": LONG, "stream": True}
    )
    gone = post_and_keep(
        pool.gateway, {"text": "b", "rid": "job-1", "sampling_params": LONG, "stream": True}
    )
    until(lambda: loads(pool.gateway)["num_running_reqs"] == 2)
    status, reply, _ = call(f"{pool.url}/abort_request", {"rid": "job-1"})
    assert status == 200
    until(lambda: loads(pool.gateway)["num_running_reqs"] == 1)
    assert call(f"{pool.url}/abort_request", {"rid": "nobody"})[0] == 200
    assert loads(pool.gateway)["num_running_reqs"] == 1
    kept.close()
    gone.close()
    until(lambda: is_idle(pool.gateway))
