"""The published gateways drive our engine over gRPC."""

import http.client
import json

import pytest

from tests.e2e import processes
from tests.e2e.processes import Server, call, events, until
from tests.peers.peers import GATEWAYS, published_gateway

CHAT = {
    "messages": [{"role": "user", "content": "Name a colour."}],
    "temperature": 0,
    "max_tokens": 16,
}
GUARD = 60.0


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("worker")
    with processes.engine(folder, "--dtype", "float32") as running:
        yield running


@pytest.fixture(scope="module")
def ours(worker, tmp_path_factory):
    with processes.gateway(tmp_path_factory.mktemp("ours"), [worker]) as running:
        yield running


@pytest.fixture(scope="module", params=list(GATEWAYS))
def theirs(request, worker, tmp_path_factory):
    with published_gateway(request.param, tmp_path_factory.mktemp("theirs"), worker) as running:
        yield running


def model_of(server: Server) -> str:
    return call(f"{server.url}/v1/models")[1]["data"][0]["id"]


def chat(server: Server, **options):
    status, reply, _ = call(
        f"{server.url}/v1/chat/completions", {"model": model_of(server), **CHAT, **options}
    )
    assert status == 200, reply
    return reply


def running(ours: Server) -> int:
    return call(f"{ours.url}/v1/loads")[1]["loads"][0]["num_running_reqs"]


def test_whole_chat_equals_ours(theirs: Server, ours: Server) -> None:
    got, want = chat(theirs), chat(ours)
    assert got["choices"][0]["message"]["content"] == want["choices"][0]["message"]["content"]
    assert got["choices"][0]["finish_reason"] == want["choices"][0]["finish_reason"]
    assert got["usage"]["prompt_tokens"] == want["usage"]["prompt_tokens"]
    assert got["usage"]["completion_tokens"] == want["usage"]["completion_tokens"]


def test_streamed_chat_equals_the_whole(theirs: Server) -> None:
    found = events(
        f"{theirs.url}/v1/chat/completions", {"model": model_of(theirs), **CHAT, "stream": True}
    )
    assert found[-1] == "[DONE]"
    text = "".join(
        choice["delta"].get("content") or "" for e in found[:-1] for choice in e.get("choices", [])
    )
    assert text == chat(theirs)["choices"][0]["message"]["content"]


def test_native_generate(theirs: Server, ours: Server) -> None:
    params = {"temperature": 0, "max_new_tokens": 12}

    def ask(server):
        body = {"model": model_of(server), "text": "The sea is", "sampling_params": params}
        status, reply, _ = call(f"{server.url}/generate", body)
        assert status == 200, reply
        return reply[0] if isinstance(reply, list) else reply

    got, want = ask(theirs), ask(ours)
    assert got["text"] == want["text"]
    assert got["output_ids"] == want["output_ids"]
    assert got["meta_info"]["completion_tokens"] == 12


def test_two_answers(theirs: Server) -> None:
    choices = chat(theirs, n=2, temperature=1.0)["choices"]
    assert [c["index"] for c in choices] == [0, 1]


def test_client_that_leaves_ends_its_request(theirs: Server, ours: Server) -> None:
    body = {
        "model": model_of(theirs),
        **CHAT,
        "max_tokens": 4000,
        "ignore_eos": True,
        "stream": True,
    }
    connection = http.client.HTTPConnection("127.0.0.1", theirs.port, timeout=GUARD)
    connection.request(
        "POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"}
    )
    reply = connection.getresponse()
    reply.readline()
    assert running(ours) == 1
    connection.close()
    reply.close()
    until(lambda: running(ours) == 0)


def test_errors_are_told(theirs: Server) -> None:
    """smg passes the worker's status on; sglang-router makes 500 of every one."""
    body = {"model": model_of(theirs), **CHAT, "max_tokens": 10_000_000}
    status, reply, _ = call(f"{theirs.url}/v1/chat/completions", body)
    assert status == (400 if "smg" in theirs.log.name else 500)
    assert "context length" in str(reply)
    assert chat(theirs)["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize("name", list(GATEWAYS))
def test_worker_that_is_not_ready_gets_no_traffic(name: str, tmp_path) -> None:
    nobody = Server(None, processes.free_port_pair(), tmp_path)
    with published_gateway(name, tmp_path, nobody, ready=False) as gateway:
        assert processes.get_status(f"{gateway.url}/readiness") == 503
        with processes.engine(tmp_path, "--dtype", "float32", port=nobody.port):
            gateway.wait("/readiness")
            assert chat(gateway)["usage"]["completion_tokens"] > 0
