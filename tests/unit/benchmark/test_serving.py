"""Whole measurements against a server on this machine."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from sglang.benchmark.errors import BenchmarkError
from sglang.benchmark.options import Options, parse
from sglang.benchmark.serving import main, run
from tests.unit.benchmark.clock import FakeTime
from tests.unit.benchmark.fake_server import FakeServer, serving

SMALL = [
    "--dataset-name", "random-ids", "--num-prompts", "5", "--random-input-len", "6",
    "--random-output-len", "4", "--random-range-ratio", "1.0",
]  # fmt: skip


async def measure(server: FakeServer, *flags: str) -> dict[str, Any]:
    async with serving(server):
        options = parse(["--base-url", server.url, *SMALL, *flags], "bench")
        return await run(options, FakeTime().clock)


def chats(path: Path, *contents: str) -> list[str]:
    records = [
        {"messages": [{"role": "user", "content": text}], "max_tokens": 3} for text in contents
    ]
    path.write_text("\n".join(map(json.dumps, records)))
    return ["--dataset-name", "openai", "--dataset-path", str(path)]


@pytest.mark.parametrize(
    "backend",
    ["sglang", "sglang-native", "sglang-oai", "sglang-oai-chat", "vllm", "vllm-chat", "lmdeploy",
     "lmdeploy-chat"],
)  # fmt: skip
async def test_every_backend_is_measured(backend: str) -> None:
    server = FakeServer()
    numbers = await measure(server, "--backend", backend)
    assert (numbers["completed"], numbers["failed"]) == (5, 0)
    assert (numbers["total_input_tokens"], numbers["total_output_tokens"]) == (30, 20)
    assert numbers["total_cached_tokens"] == 5
    assert numbers["mean_ttft_ms"] is not None and numbers["mean_itl_ms"] is not None
    assert len(server.bodies) == 6  # with the warm-up
    asked_info = "/server_info" in server.paths
    assert asked_info == backend.startswith("sglang")


@pytest.mark.parametrize("backend", ["sglang-embedding", "vllm-embedding"])
async def test_embeddings_have_no_tokens_to_time(backend: str) -> None:
    numbers = await measure(FakeServer(), "--backend", backend)
    assert (numbers["completed"], numbers["total_input_tokens"]) == (5, 30)
    assert numbers["total_output_tokens"] == 0
    assert numbers["mean_ttft_ms"] is None and numbers["mean_e2e_latency_ms"] is not None


@pytest.mark.parametrize("backend", ["sglang", "sglang-oai", "vllm-chat"])
async def test_whole_answers_have_no_token_times(backend: str) -> None:
    server = FakeServer()
    numbers = await measure(server, "--backend", backend, "--disable-stream")
    assert (numbers["completed"], numbers["total_output_tokens"]) == (5, 20)
    assert numbers["mean_ttft_ms"] is numbers["mean_itl_ms"] is None
    assert all(body["stream"] is False for body in server.bodies)


async def test_flags_reach_the_server() -> None:
    server = FakeServer()
    await measure(
        server, "--flush-cache", "--warmup-requests", "2", "--temperature", "0.5",
        "--disable-ignore-eos", "--return-logprob", "--extra-request-body", '{"rid": "x"}',
        "--header", "x-team=red",
    )  # fmt: skip
    body = server.bodies[-1]
    assert body["sampling_params"] == {
        "temperature": 0.5, "top_p": 1.0, "max_new_tokens": 4, "ignore_eos": False,
    }  # fmt: skip
    assert body["return_logprob"] is True and body["rid"] == "x"
    assert server.headers["x-team"] == "red"
    generates = [i for i, path in enumerate(server.paths) if path == "/generate"]
    flushed = server.paths.index("/flush_cache")
    assert generates[1] < flushed < generates[2]


@pytest.mark.parametrize(
    "flags", [[], ["--model", "m"], ["--model", "m", "--served-model-name", "s"]]
)
async def test_the_model_is_the_server_s_unless_named(flags: list[str]) -> None:
    server = FakeServer()
    await measure(server, "--backend", "vllm", *flags)
    assert server.bodies[0]["model"] == (flags[-1] if flags else "words")


TURNS = [
    "--dataset-name", "generated-shared-prefix", "--gsp-num-groups", "1",
    "--gsp-prompts-per-group", "2", "--gsp-system-prompt-len", "6", "--gsp-question-len", "3",
    "--gsp-output-len", "2", "--gsp-num-turns", "3", "--warmup-requests", "0",
]  # fmt: skip


@pytest.mark.parametrize("backend", ["sglang", "sglang-oai", "vllm-chat"])
async def test_turns_follow_each_other(backend: str) -> None:
    server = FakeServer()
    numbers = await measure(server, *TURNS, "--max-concurrency", "1", "--backend", backend)
    assert (numbers["completed"], numbers["total_output_tokens"]) == (6, 12)
    asked = [body.get("text") or body.get("prompt") or body["messages"] for body in server.bodies]
    for conversation in (asked[:3], asked[3:]):
        first, second, third = conversation
        if backend == "vllm-chat":
            assert [m["role"] for m in third] == ["user", "assistant"] * 2 + ["user"]
            assert third[:3] == second and second[:1] == first and second[1]["content"] == "xx"
        else:
            answer = "w0 w1" if backend == "sglang" else "xx"
            assert second.startswith(first + answer) and third.startswith(second + answer)


async def test_turns_after_one_that_failed_have_failed_too() -> None:
    class FailingOnce(FakeServer):
        def generate(self, path: str, body: dict[str, Any]) -> tuple[int, str]:
            fails = len(self.bodies) == 2
            return (503, "{}") if fails else super().generate(path, body)

    server = FailingOnce()
    numbers = await measure(server, *TURNS, "--max-concurrency", "1")
    assert (numbers["completed"], numbers["failed"], len(server.bodies)) == (4, 2, 5)
    counts = {kind: told["count"] for kind, told in numbers["failures"].items()}
    assert counts == {"HTTP 503": 1, "not sent": 1}


async def test_adapters_are_asked_for_and_told(tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    server = FakeServer()
    await measure(
        server, "--lora-name", "a", "b", "--lora-request-distribution", "distinct",
        "--warmup-requests", "0", "--max-concurrency", "1", "--output-file", str(out),
        "--output-details",
    )  # fmt: skip
    assert [body["lora_path"] for body in server.bodies] == ["a", "b", "a", "b", "a"]
    told = json.loads(out.read_text())
    assert (told["lora_name"], told["lora_names"]) == (["a", "b"], ["a", "b", "a", "b", "a"])


async def test_report_and_json_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results.jsonl"
    flags = ["--output-file", str(out), "--output-details", "--cache-report", "--tag", "t",
             "--goodput", "e2el:60000", "--max-concurrency", "2"]  # fmt: skip
    await measure(FakeServer(), *flags)
    await measure(FakeServer(), *flags)
    text = capsys.readouterr().out
    for line in ("Backend:", "Traffic request rate:", "Max request concurrency:",
                 "Successful requests:", "Benchmark duration (s):", "Total input tokens:",
                 "Total generated tokens:", "Request throughput (req/s):", "Concurrency:",
                 "Output token throughput (tok/s):", "Request goodput (req/s):",
                 "Total cached tokens:", "Mean TTFT (ms):", "P95 TPOT (ms):", "Max ITL (ms):",
                 "P99 E2E Latency (ms):"):  # fmt: skip
        assert f"\n{line} " in text
    first, second = (json.loads(line) for line in out.read_text().splitlines())
    for key in ("backend", "dataset_name", "request_rate", "max_concurrency", "duration",
                "completed", "total_input_tokens", "total_output_tokens",
                "total_output_tokens_retokenized", "request_throughput", "input_throughput",
                "output_throughput", "total_throughput", "mean_e2e_latency_ms",
                "p99_e2e_latency_ms", "std_ttft_ms", "p95_tpot_ms", "median_itl_ms", "max_itl_ms",
                "concurrency", "accept_length", "server_info"):  # fmt: skip
        assert key in first
    assert (first["tag"], first["goodput"], first["max_concurrency"]) == ("t", {"e2el": 60000}, 2)
    assert first["server_info"]["version"] == "fake"
    assert second["output_lens"] == [4] * 5 and len(second["itls"]) == 5
    assert second["generated_texts"] == ["w0 w1 w2 w3"] * 5


async def test_the_rate_is_a_number_where_it_is_one(tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    for flags in (["--request-rate", "1000"], []):
        await measure(FakeServer(), "--output-file", str(out), *flags)
    rates = [json.loads(line)["request_rate"] for line in out.read_text().splitlines()]
    assert rates == [1000.0, "inf"]


async def test_a_file_that_cannot_be_written_is_named_before_anything_is_sent() -> None:
    server = FakeServer()
    with pytest.raises(BenchmarkError, match="--output-file /nowhere/f cannot be written"):
        await measure(server, "--output-file", "/nowhere/f")
    assert server.paths == []


async def test_failures_are_shown_by_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faults = ("status", "cut", "error", "garbage", "several", "status")
    data = chats(tmp_path / "f", "fine", *faults)
    numbers = await measure(FakeServer(), "--backend", "vllm-chat", *data, "--num-prompts", "9")
    assert (numbers["completed"], numbers["failed"]) == (1, 6)
    assert {kind: told["count"] for kind, told in numbers["failures"].items()} == {
        "HTTP 503": 2, "stream was cut": 1, "error in the answer": 1, "answer is not JSON": 1,
        "answer is no object": 1,
    }  # fmt: skip
    text = capsys.readouterr().out
    assert "2 x HTTP 503: queue is full" in text
    assert "1 x error in the answer: worker died" in text


async def test_warm_up_that_fails_ends_the_measurement(tmp_path: Path) -> None:
    data = chats(tmp_path / "f", "status")
    with pytest.raises(BenchmarkError, match="warm-up request failed with HTTP 503: queue is full"):
        await measure(FakeServer(), "--backend", "vllm-chat", *data)


async def test_a_server_that_is_loading_is_waited_for() -> None:
    time, server = FakeTime(), FakeServer(polls_until_ready=5)
    async with serving(server):
        options = parse(["--base-url", server.url, *SMALL], "bench")
        assert (await run(options, time.clock))["completed"] == 5
    assert time.seconds == 4 * 0.5


async def test_a_server_that_does_not_come_is_named() -> None:
    time = FakeTime()
    options = Options(base_url="http://127.0.0.1:9", dataset_name="random-ids")
    with pytest.raises(BenchmarkError, match="127.0.0.1:9 is not ready after 60 s.*Connect"):
        await run(options, time.clock)
    assert time.seconds == 60


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*SMALL, "--base-url", "http://127.0.0.1:9", "--ready-check-timeout-sec", "0"]
    assert main(argv) == 1
    assert capsys.readouterr().err.startswith("bench_serving: http://127.0.0.1:9 is not ready")


async def test_all_failed_is_an_error_code(tmp_path: Path) -> None:
    server = FakeServer()
    data = chats(tmp_path / "f", "status", "status")
    argv = ["--backend", "vllm-chat", *data, "--warmup-requests", "0"]
    async with serving(server):
        code = await asyncio.to_thread(main, ["--base-url", server.url, *argv])
    assert code == 1


@pytest.mark.parametrize(
    ("states", "length"),
    [
        ([{"avg_spec_accept_length": 2.5}], 2.5),
        ([{"avg_spec_accept_length": 2.0}, {"avg_spec_accept_length": 3}, {}, None], 2.5),
        ([{"last_gen_throughput": 9.0}], None),
        ([{"avg_spec_accept_length": "2.5"}], None),
        ([], None),
        (None, None),
        ("none", None),
    ],
)
async def test_the_length_of_accepted_drafts_is_what_the_schedulers_say(
    states: Any, length: float | None, capsys: pytest.CaptureFixture[str]
) -> None:
    server = FakeServer(info={"internal_states": states, "avg_spec_accept_length": 9.0})
    assert (await measure(server))["accept_length"] == length
    shown = f"\nAccept length:                           {length:.2f}\n" if length else "Accept"
    assert (shown in capsys.readouterr().out) == bool(length)


@pytest.mark.parametrize("info", [None, [], [1], "text"])
async def test_a_server_that_tells_nothing_of_use_is_measured_all_the_same(
    tmp_path: Path, info: Any
) -> None:
    out = tmp_path / "results.jsonl"
    numbers = await measure(FakeServer(info=info), "--output-file", str(out))
    assert (numbers["completed"], numbers["accept_length"]) == (5, None)
    assert json.loads(out.read_text())["server_info"] is None


async def test_a_result_that_json_lacks_is_shown_and_then_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results.jsonl"
    server = FakeServer(info={"load": float("nan")})
    with pytest.raises(BenchmarkError, match=f"--output-file {out} is left as it was.*server_info"):
        await measure(server, "--output-file", str(out))
    assert "Successful requests:                     5" in capsys.readouterr().out
    assert out.read_text() == ""


async def test_a_reader_that_stops_early_is_no_failure(tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    reading, writing = os.pipe()
    os.close(reading)
    server = FakeServer()
    async with serving(server):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "sglang.bench_serving", "--base-url", server.url, *SMALL,
            "--output-file", str(out), stdout=writing, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        os.close(writing)
        _, told = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, told.decode()) == (0, "")
    assert json.loads(out.read_text())["completed"] == 5


@pytest.mark.parametrize("message", ["größer", "half a character: \ud83d"])
async def test_any_text_of_the_server_can_be_shown(
    message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Refusing(FakeServer):
        def generate(self, path: str, body: dict[str, Any]) -> tuple[int, str]:
            return 503, json.dumps({"error": {"message": message}})

    with (tmp_path / "shown").open("w", encoding="ascii") as screen:
        monkeypatch.setattr(sys, "stdout", screen)
        await measure(Refusing(), "--warmup-requests", "0")
    wanted = message.encode("ascii", "backslashreplace").decode()
    assert f"5 x HTTP 503: {wanted}\n" in (tmp_path / "shown").read_text()
