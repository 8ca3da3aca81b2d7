"""Spans of requests, at a collector that is there, late or missing."""

import logging
import socket
import time

import pytest

from sglang.srt.core.messages import FinishReason, GenerateInput, RequestTimes
from sglang.srt.core.sampling_params import SamplingParams
from sglang.srt.observability import tracing
from sglang.srt.observability.answer_watch import AnswerRecord
from sglang.srt.observability.tracing import RequestTracer
from tests.otlp_collector import OtlpCollector, Span, otlp_collector

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
STAGES = ("grammar", "queue", "prefill", "decode", "finish")


def record_of(rid: str = "r", *, sampled: bool = True, **changes: object) -> AnswerRecord:
    """Ten seconds long, ended now."""
    now = time.monotonic()
    times = RequestTimes(
        received=now - 9, compiled=now - 8, admissions=[now - 7, now - 3.5],
        chunks=[(now - 6, 16), (now - 5, 8), (now - 3, 26)], prefilled=now - 5,
        retractions=[now - 4], finished=now - 1,
    )  # fmt: skip
    wish = GenerateInput(
        rid=rid, input_ids=[1] * 24, sampling=SamplingParams(max_new_tokens=9, temperature=0.5)
    )
    context = {"traceparent": f"00-{TRACE}-{CALLER}-0{int(sampled)}"}
    fields = {
        "left": now, "completion_tokens": 9, "cached_tokens": 4, "num_retractions": 1,
        "finish": FinishReason(type="length"), "times": times, **changes,
    }  # fmt: skip
    return AnswerRecord(wish, context, arrival=now - 10, **fields)  # type: ignore[arg-type]


def spans_of(collector: OtlpCollector, *records: AnswerRecord) -> dict[str, Span]:
    tracer = RequestTracer(collector.endpoint, "tiny", "1.0")
    for record in records:
        tracer.ended(record)
    tracer.shut_down()
    return {span.name: span for span in collector.spans}


def test_stages_hang_under_the_caller_s_span() -> None:
    with otlp_collector() as collector:
        spans = spans_of(collector, record_of())
    whole = spans["engine.request"]
    assert (whole.trace_id, whole.parent_id) == (TRACE, CALLER)
    assert set(spans) == {"engine.request", *STAGES}
    assert {spans[name].parent_id for name in STAGES} == {whole.span_id}
    assert {span.trace_id for span in spans.values()} == {TRACE}
    assert whole.attributes == {
        "rid": "r", "gen_ai.usage.input_tokens": 24, "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.output_tokens": 9, "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.request.temperature": 0.5, "gen_ai.request.top_p": 1.0,
        "gen_ai.request.max_tokens": 9, "sglang.num_retractions": 1,
    }  # fmt: skip
    assert whole.resource["service.name"] == "sglang" and whole.resource["model"] == "tiny"
    assert not whole.is_error


def test_stages_lie_one_after_the_other_and_end_when_they_ended() -> None:
    record, before = record_of(), time.time_ns()
    with otlp_collector() as collector:
        spans = spans_of(collector, record)
    lengths = [round((spans[name].end - spans[name].start) / 1e9, 3) for name in STAGES]
    assert lengths == [1, 1, 2, 4, 1]
    for earlier, later in zip(STAGES, STAGES[1:], strict=False):
        assert spans[later].start == spans[earlier].end
    whole = spans["engine.request"]
    assert whole.start < spans["grammar"].start and spans["finish"].end == whole.end
    assert abs(whole.end - before) < 1e9


def test_passes_and_retractions_are_events_of_their_stage() -> None:
    with otlp_collector() as collector:
        spans = spans_of(collector, record_of())
    prefill = [(event.name, event.attributes) for event in spans["prefill"].events]
    assert prefill == [("pass", {"tokens": 16}), ("pass", {"tokens": 8})]
    decode = [(event.name, event.attributes) for event in spans["decode"].events]
    assert decode == [("retracted", {}), ("readmitted", {}), ("pass", {"tokens": 26})]
    for stage in ("prefill", "decode"):
        span = spans[stage]
        assert all(span.start <= event.time <= span.end for event in span.events)


def test_a_caller_that_samples_nothing_gets_no_spans() -> None:
    with otlp_collector() as collector:
        assert spans_of(collector, record_of(sampled=False)) == {}


def test_without_a_caller_s_span_the_request_is_the_root() -> None:
    record = record_of()
    record.context = {}
    with otlp_collector() as collector:
        assert spans_of(collector, record)["engine.request"].parent_id == ""


@pytest.mark.parametrize(
    ("finish", "words"),
    [
        (None, "The caller was gone before the answer ended"),
        (FinishReason(type="abort", message="no room", status_code=503), "no room"),
    ],
)
def test_what_did_not_end_well_is_an_error(finish: FinishReason | None, words: str) -> None:
    with otlp_collector() as collector:
        spans = spans_of(collector, record_of(finish=finish, times=None))
    assert set(spans) == {"engine.request"}
    assert spans["engine.request"].is_error and spans["engine.request"].error == words


def test_a_missing_collector_costs_nothing_but_the_spans(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.socket() as taken:  # bound and not listening: nobody else gets the port
        taken.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{taken.getsockname()[1]}"
        tracer = RequestTracer(endpoint, "tiny", "1.0")
        start = time.monotonic()
        for i in range(50):
            tracer.ended(record_of(f"r{i}"))
        assert time.monotonic() - start < 2.0
        with caplog.at_level(logging.WARNING):
            tracer.shut_down(timeout=0.5)
        assert time.monotonic() - start < 4.0
    assert "could not be sent" in caplog.text or "Spans are lost" in caplog.text


def test_a_collector_that_answers_nothing_does_not_hold_the_end() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        tracer = RequestTracer(f"127.0.0.1:{silent.getsockname()[1]}", "tiny", "1.0")
        tracer.ended(record_of())
        start = time.monotonic()
        tracer.shut_down(timeout=0.5)
        assert time.monotonic() - start < 4.0


def test_missing_packages_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    tracing.check_installed()
    monkeypatch.setattr(tracing, "PACKAGES", ("opentelemetry_that_is_missing.sdk",))
    with pytest.raises(ValueError, match="sglang\\[trace\\]"):
        RequestTracer("localhost:4317", "tiny", "1.0")
