"""Spans, latencies and log lines of requests that come over gRPC."""

import asyncio
import logging
import time
from typing import Any

import grpc
import pytest

from sglang.srt.core.messages import FinishReason, RequestOutput
from sglang.srt.entrypoints import wire
from tests.otlp_collector import OtlpCollector, otlp_collector
from tests.wire.fake_scheduler import GUARD, Worker, finish, generate_request, serve, tokens

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
METADATA = (("traceparent", f"00-{TRACE}-{CALLER}-01"),)


async def read_all(call: Any) -> list[Any]:
    messages = []
    while (message := await asyncio.wait_for(call.read(), GUARD)) is not grpc.aio.EOF:
        messages.append(message)
    return messages


async def answer(worker: Worker, rid: str = "a", **sampling: Any) -> None:
    """One request from its arrival to its end."""
    call = worker.rpc.Generate(generate_request(rid, sampling=sampling), metadata=METADATA)
    for wish in [await worker.scheduler.receive() for _ in range(sampling.get("n", 1))]:
        await worker.scheduler.step(tokens(wish.rid, [1], 1))
        await worker.scheduler.step(finish(wish.rid, [2], 2, type="stop"))
    await read_all(call)


async def spans(worker: Worker, collector: OtlpCollector, *names: str) -> dict[str, Any]:
    await asyncio.to_thread(worker.service.observers.shut_down)
    return await asyncio.to_thread(collector.wait_for_names, TRACE, *names)


async def test_spans_hang_under_the_traceparent_of_the_call() -> None:
    with otlp_collector() as collector:
        async with serve(enable_trace=True, otlp_traces_endpoint=collector.endpoint) as worker:
            await worker.become_ready()
            before = time.time_ns()
            await answer(worker)
            after = time.time_ns()
            names = ("queue", "prefill", "decode", "finish")
            found = await spans(worker, collector, "engine.request", *names)
    whole = found["engine.request"]
    assert whole.parent_id == CALLER
    assert before <= whole.start <= found["queue"].start
    assert found["finish"].end == whole.end <= after
    starts = [found[name].start for name in names]
    assert starts == sorted(starts)
    assert all(found[name].parent_id == whole.span_id for name in names)
    assert whole.attributes["gen_ai.usage.output_tokens"] == 2
    assert whole.attributes["gen_ai.response.finish_reasons"] == ["stop"]


async def test_each_answer_of_a_request_has_its_span() -> None:
    with otlp_collector() as collector:
        async with serve(enable_trace=True, otlp_traces_endpoint=collector.endpoint) as worker:
            await worker.become_ready()
            await answer(worker, n=2)
            await spans(worker, collector, "engine.request")
            whole = [span for span in collector.spans if span.name == "engine.request"]
    assert {span.attributes["rid"] for span in whole} == {"a#0", "a#1"}


async def test_a_caller_that_leaves_and_a_refusal_are_errors() -> None:
    with otlp_collector() as collector:
        async with serve(enable_trace=True, otlp_traces_endpoint=collector.endpoint) as worker:
            await worker.become_ready()
            gone = worker.rpc.Generate(generate_request("gone"), metadata=METADATA)
            await worker.scheduler.receive()
            await worker.scheduler.step(tokens("gone", [1], 1))
            await gone.read()
            gone.cancel()
            await worker.scheduler.receive()  # the abort
            full = worker.rpc.Generate(generate_request("full"), metadata=METADATA)
            await worker.scheduler.receive()
            reason = FinishReason(type="abort", message="no room", status_code=503)
            await worker.scheduler.step(RequestOutput(rid="full", finish=reason))
            with pytest.raises(grpc.aio.AioRpcError):
                await read_all(full)
            await spans(worker, collector, "engine.request")
    errors = {span.attributes["rid"]: span.error for span in collector.spans}
    assert errors == {"gone": "The caller was gone before the answer ended", "full": "no room"}


async def test_a_scheduler_that_dies_is_the_error_of_its_requests() -> None:
    with otlp_collector() as collector:
        async with serve(enable_trace=True, otlp_traces_endpoint=collector.endpoint) as worker:
            await worker.become_ready()
            call = worker.rpc.Generate(generate_request("a"), metadata=METADATA)
            await worker.scheduler.receive()
            worker.client.fail("it was killed")
            with pytest.raises(grpc.aio.AioRpcError):
                await read_all(call)
            found = await spans(worker, collector, "engine.request")
    whole = found["engine.request"]
    assert whole.error == "it was killed"
    assert whole.attributes["gen_ai.response.finish_reasons"] == ["failed"]


async def test_embeddings_have_spans_too() -> None:
    with otlp_collector() as collector:
        async with serve(
            is_embedding=True, enable_trace=True, otlp_traces_endpoint=collector.endpoint
        ) as worker:
            await worker.become_ready()
            request = wire.scheduler("EmbedRequest")(request_id="e")
            request.tokenized.input_ids.extend([5, 6, 7])
            call = worker.rpc.Embed(request, metadata=METADATA)
            await worker.scheduler.receive()
            output = finish("e", [], 0)
            output.embedding = [1.0]
            await worker.scheduler.step(output)
            assert list((await call).embedding) == [1.0]
            found = await spans(worker, collector, "engine.request", "prefill")
    assert found["engine.request"].parent_id == CALLER


async def test_a_missing_collector_does_no_harm() -> None:
    with otlp_collector() as collector:
        endpoint = collector.endpoint
    async with serve(enable_trace=True, otlp_traces_endpoint=endpoint) as worker:
        await worker.become_ready()
        for i in range(20):
            await answer(worker, f"r{i}")
        start = time.monotonic()
        await asyncio.to_thread(worker.service.observers.shut_down)
        assert time.monotonic() - start < 5.0


async def test_durations_and_stages_reach_the_histograms() -> None:
    async with serve(
        enable_metrics=True, extra_metric_labels='{"region": "north"}',
        generation_tokens_buckets=["custom", "1", "5"],
    ) as worker:  # fmt: skip
        await worker.become_ready()
        await worker.scheduler.step(durations={"eviction": [0.25, 0.5]})
        await answer(worker)
        text = worker.service.metrics.text()
    labels = 'dp_rank="0",engine_type="unified",model_name="dummy",pp_rank="0",region="north"'
    labels = f'{labels},tp_rank="0"'
    assert f"sglang:eviction_duration_seconds_sum{{{labels}}} 0.75" in text
    assert f"sglang:queue_time_seconds_count{{{labels}}} 1.0" in text
    assert 'stage="decode",tp_rank="0"} 1.0' in text
    bucket = labels.replace(",model_name", ',le="5.0",model_name')
    assert f"sglang:generation_tokens_histogram_bucket{{{bucket}}} 1.0" in text


async def test_answers_are_logged_when_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "sglang.srt.observability.request_log"):
        async with serve(log_requests=True, log_requests_level=3) as worker:
            await worker.become_ready()
            await answer(worker)
    (line,) = [r.getMessage() for r in caplog.records if r.name.endswith("request_log")]
    assert line.startswith("rid=a finish=stop prompt_tokens=3 cached_tokens=1 ")
    assert "input_ids=[5, 6, 7] output_ids=[1, 2]" in line
