"""Our gateway drives a worker that is built from the published stubs."""

import pytest

from tests.e2e import processes
from tests.e2e.processes import call, events
from tests.e2e.reference import demo_folder
from tests.peers.peers import stub_worker

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 16}


@pytest.fixture(scope="module", params=[[], ["--bundle"]], ids=["local files", "bundle"])
def gateway(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stub")
    with (
        stub_worker(folder, demo_folder(), *request.param) as worker,
        processes.gateway(folder, [worker]) as running,
    ):
        yield running


def test_whole_and_streamed_chat(gateway) -> None:
    status, reply, _ = call(f"{gateway.url}/v1/chat/completions", {"model": "stub", **CHAT})
    assert status == 200, reply
    text = reply["choices"][0]["message"]["content"]
    assert text == call(f"{gateway.url}/detokenize", {"tokens": [28, 284, 253]})[1]["text"]
    assert reply["usage"]["completion_tokens"] == 3
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 1
    found = events(f"{gateway.url}/v1/chat/completions", {"model": "stub", **CHAT, "stream": True})
    assert (
        "".join(c["delta"].get("content") or "" for e in found[:-1] for c in e["choices"]) == text
    )


def test_information_of_a_foreign_worker(gateway) -> None:
    assert call(f"{gateway.url}/get_model_info")[1]["model_type"] == "llama"
    assert call(f"{gateway.url}/v1/models")[1]["data"][0]["id"] == "stub"


def test_error_of_a_foreign_worker(tmp_path) -> None:
    with (
        stub_worker(tmp_path, demo_folder(), "--fail") as worker,
        processes.gateway(tmp_path, [worker]) as running,
    ):
        status, reply, _ = call(f"{running.url}/v1/chat/completions", {"model": "stub", **CHAT})
        assert status == 400
        assert "the stub refuses this" in reply["error"]["message"]
