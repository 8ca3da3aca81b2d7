"""What a real engine tells about its work: spans, series and lines in the log."""

import asyncio
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

import sglang
from sglang.srt.entrypoints import wire
from tests.e2e.processes import Server, engine
from tests.otlp_collector import otlp_collector
from tests.wire.rpc_client import Client

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
METADATA = (("traceparent", f"00-{TRACE}-{CALLER}-01"),)
PROMPT = list(range(1000, 1040))


async def generate(server: Server, request_id: str, prompt: list[int], new: int) -> Any:
    """The end of one answer."""
    request = wire.scheduler("GenerateRequest")(
        request_id=request_id, stream=False, logprob_start_len=-1
    )
    request.tokenized.input_ids.extend(prompt)
    request.sampling_params.max_new_tokens = new
    request.sampling_params.ignore_eos = True
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        call = Client(channel, wire.SCHEDULER_SERVICE).Generate(request, metadata=METADATA)
        messages = [message async for message in call]
    return messages[-1].complete


def samples(server: Server) -> dict[tuple[str, str], float]:
    """(name, its own label's value) → value."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port + 1}/metrics") as reply:
        text = reply.read().decode()
    own = ("cache_source", "mode", "stage")
    return {
        (sample.name, next((sample.labels[name] for name in own if name in sample.labels), "")):
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels["region"] == "north"
    }  # fmt: skip


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Three answers of one engine, one after the other, and everything it told about them."""
    flags = [
        "--enable-trace", "--enable-metrics", "--decode-log-interval", "8", "--log-requests",
        "--extra-metric-labels", '{"region": "north"}', "--chunked-prefill-size", "16",
    ]  # fmt: skip
    folder: Path = tmp_path_factory.mktemp("observing")
    with otlp_collector() as collector:
        with engine(folder, *flags, "--otlp-traces-endpoint", collector.endpoint) as server:
            answers = [
                asyncio.run(generate(server, f"r{i}", [*PROMPT, 2000 + i], 10)) for i in range(3)
            ]
            series = samples(server)
        # The engine has ended: the last spans are sent.
        spans = collector.of_trace(TRACE)
    return {"answers": answers, "series": series, "spans": spans, "log": server.log_text()}


def test_series_say_what_the_answers_say(told: dict[str, Any]) -> None:
    answers, series = told["answers"], told["series"]
    prompts = sum(answer.prompt_tokens for answer in answers)
    cached = sum(answer.cached_tokens for answer in answers)
    assert series["sglang:num_requests_total", ""] == 3
    assert series["sglang:prompt_tokens_total", ""] == prompts == 3 * 41
    assert series["sglang:cached_tokens_total", "device"] == cached >= 2 * 32
    assert series["sglang:cache_hit_rate", ""] == pytest.approx(cached / prompts)
    assert series["sglang:generation_tokens_total", ""] == 30
    assert series["sglang:realtime_tokens_total", "prefill_compute"] == prompts - cached
    assert series["sglang:realtime_tokens_total", "decode"] == 27
    assert series["sglang:num_running_reqs", ""] == series["sglang:num_queue_reqs", ""] == 0
    pool = series["sglang:max_total_num_tokens", ""]
    held = series["sglang:kv_available_tokens", ""] + series["sglang:kv_evictable_tokens", ""]
    assert held == pool and series["sglang:kv_used_tokens", ""] == 0


def test_histograms_have_every_answer_in_every_stage(told: dict[str, Any]) -> None:
    series = told["series"]
    for name in ("time_to_first_token", "e2e_request_latency", "queue_time"):
        assert series[f"sglang:{name}_seconds_count", ""] == 3
    sums = {}
    for stage in ("queue", "prefill", "decode"):
        assert series["sglang:per_stage_req_latency_seconds_count", stage] == 3
        sums[stage] = series["sglang:per_stage_req_latency_seconds_sum", stage]
    whole = series["sglang:e2e_request_latency_seconds_sum", ""]
    assert 0.5 * whole < sum(sums.values()) <= whole
    assert series["sglang:generation_tokens_histogram_sum", ""] == 30


def test_spans_are_nested_and_ordered(told: dict[str, Any]) -> None:
    whole = {s.attributes["rid"]: s for s in told["spans"] if s.name == "engine.request"}
    assert set(whole) == {"r0", "r1", "r2"}
    for request, answer in zip(whole.values(), told["answers"], strict=True):
        assert request.parent_id == CALLER
        assert request.attributes["gen_ai.usage.cache_read.input_tokens"] == answer.cached_tokens
        inside = [s for s in told["spans"] if s.parent_id == request.span_id]
        assert [s.name for s in inside] == ["queue", "prefill", "decode", "finish"]
        for earlier, later in zip(inside, inside[1:], strict=False):
            assert earlier.start <= earlier.end == later.start <= later.end
        assert request.start <= inside[0].start and inside[-1].end == request.end
        tokens = [e.attributes["tokens"] for s in inside for e in s.events if e.name == "pass"]
        assert sum(tokens) == answer.prompt_tokens - answer.cached_tokens
        assert max(tokens) <= 16


def test_the_log_shows_steps_and_answers(told: dict[str, Any]) -> None:
    lines = told["log"].splitlines()
    assert sum("load_stats: decode: 1 running, " in line for line in lines) == 3
    answers = [line for line in lines if "request_log: rid=" in line]
    assert len(answers) == 3 and "finish=length prompt_tokens=41 " in answers[0]


def test_a_missing_collector_neither_harms_answers_nor_the_end(tmp_path: Path) -> None:
    with otlp_collector() as collector:
        endpoint = collector.endpoint
    with engine(tmp_path, "--enable-trace", "--otlp-traces-endpoint", endpoint) as server:
        assert asyncio.run(generate(server, "r", PROMPT, 4)).completion_tokens == 4
        assert server.end() == 0


def test_an_engine_in_a_program_of_one_s_own_sends_spans_too() -> None:
    with otlp_collector() as collector:
        with sglang.Engine(
            model_path="demo", max_total_tokens=1024, enable_trace=True,
            otlp_traces_endpoint=collector.endpoint,
        ) as running:  # fmt: skip
            reply = running.generate("The sea is", {"max_new_tokens": 4, "ignore_eos": True})
        spans = {span.name: span for span in collector.spans}
    whole = spans["engine.request"]
    assert whole.parent_id == "" and whole.attributes["rid"] == reply["meta_info"]["id"]
    assert whole.attributes["gen_ai.usage.output_tokens"] == 4
    assert spans["decode"].parent_id == whole.span_id
