"""The benchmark of one batch against a played server."""

import json
from typing import Any

import httpx
import pytest

from sglang.benchmark.errors import BenchmarkError
from sglang.benchmark.one_batch_server import OneBatchServerOptions, main, run


class PlayedServer:
    def __init__(self, events: list[dict[str, Any]], status: int = 200) -> None:
        self.asked: list[tuple[str, Any]] = []
        self._events = events
        self._status = status

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content) if request.content else None
        self.asked.append((request.url.path, body))
        if request.url.path == "/model_info":
            return httpx.Response(200, json={"vocab_size": 100})
        if request.url.path == "/flush_cache":
            return httpx.Response(200)
        lines = [f"data: {json.dumps(event)}\n\n" for event in self._events]
        return httpx.Response(self._status, text="".join(lines) + "data: [DONE]\n\n")


def event(index: int, tokens: int) -> dict[str, Any]:
    return {"index": index, "meta_info": {"completion_tokens": tokens}}


def client_of(server: PlayedServer) -> httpx.Client:
    return httpx.Client(base_url="http://played", transport=httpx.MockTransport(server))


def test_batch_is_computed_from_scratch_and_timed() -> None:
    server = PlayedServer([event(0, 0), event(0, 1), event(1, 1), event(0, 2), event(1, 2)])
    result = run(client_of(server), OneBatchServerOptions(), (2, 5, 2))
    assert [path for path, _ in server.asked] == ["/model_info", "/flush_cache", "/generate"]
    body = server.asked[-1][1]
    assert [len(ids) for ids in body["input_ids"]] == [5, 5]
    assert all(0 <= token < 100 for ids in body["input_ids"] for token in ids)
    assert body["sampling_params"] == {"temperature": 0.0, "max_new_tokens": 2, "ignore_eos": True}
    assert 0 < result.ttft <= result.latency
    assert result.input_throughput == pytest.approx(10 / result.ttft)
    assert "time to the first tokens" in result.lines()[1]


def test_prompt_without_answer_is_a_failure() -> None:
    server = PlayedServer([event(0, 1)])
    with pytest.raises(BenchmarkError, match="1 prompts have no answer"):
        run(client_of(server), OneBatchServerOptions(), (2, 5, 2))


def test_errors_of_the_server_are_told() -> None:
    with pytest.raises(BenchmarkError, match="answers 503"):
        run(client_of(PlayedServer([], 503)), OneBatchServerOptions(), (1, 5, 2))
    server = PlayedServer([{"error": {"message": "no room"}}])
    with pytest.raises(BenchmarkError, match="no room"):
        run(client_of(server), OneBatchServerOptions(), (1, 5, 2))


def test_running_server_takes_no_flags_of_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--base-url", "http://played", "--page-size", "1"]) == 1
    assert "leave out --page-size" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("--batch-sizes", "--batch-sizes: did you mean the benchmark's own --batch-size?"),
        ("--no-such-thing", "unknown option --no-such-thing"),
    ],
)
def test_own_flags_that_are_misspelt_are_named(
    capsys: pytest.CaptureFixture[str], flag: str, expected: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--model-path", "demo", flag, "2"])
    assert ended.value.code == 2
    text = capsys.readouterr().err
    assert expected in text and ("the benchmark's own" in text) == (flag == "--batch-sizes")
