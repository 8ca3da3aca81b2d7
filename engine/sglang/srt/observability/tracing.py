"""Spans of requests for an OpenTelemetry collector. Imported only with --enable-trace."""

import importlib.util
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from sglang.srt.observability.stages import DECODE, PREFILL, Stage, stages_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

    from sglang.srt.core.messages import RequestTimes
    from sglang.srt.observability.answer_watch import AnswerRecord

logger = logging.getLogger(__name__)
CONTEXT_HEADERS = ("traceparent", "tracestate")
PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.grpc")
MAX_WAITING_SPANS = 8192  # more are dropped
MAX_EVENTS = 1024  # of one span
SEND_INTERVAL = 1.0  # seconds
SEND_TIMEOUT = 5.0  # seconds that one batch of spans may take
END_TIMEOUT = 2.0  # seconds that the last spans get when the worker ends
REQUEST, FINISH = "engine.request", "finish"


def check_installed() -> None:
    """ValueError unless the packages of the extra `trace` are there."""
    try:
        found = all(importlib.util.find_spec(name) for name in PACKAGES)
    except ModuleNotFoundError:
        found = False
    if not found:
        raise ValueError(
            "--enable-trace needs packages of OpenTelemetry that are not installed; install them "
            "with pip install 'sglang[trace]'"
        )


class RequestTracer:
    """One span per answer, with a child for each of its stages, below the caller's span.

    They are made when the answer is over and sent by a thread of their own, so neither a slow nor
    a missing collector holds anything up.
    """

    reads_ids = False

    def __init__(self, endpoint: str, model_name: str, version: str) -> None:
        """`endpoint` is HOST:PORT of a collector that takes OTLP over gRPC."""
        check_installed()
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import SpanLimits, TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        for name in ("opentelemetry.exporter", "opentelemetry.sdk"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # `_Reporting` says it once
        otlp = OTLPSpanExporter(f"http://{endpoint}", insecure=True, timeout=SEND_TIMEOUT)
        self._exporter = otlp
        self._processor = BatchSpanProcessor(
            _reporting(otlp, endpoint),
            max_queue_size=MAX_WAITING_SPANS,
            schedule_delay_millis=SEND_INTERVAL * 1000,
        )
        self._provider = TracerProvider(
            resource=Resource.create(
                {"service.name": "sglang", "service.version": version, "model": model_name}
            ),
            span_limits=SpanLimits(max_events=MAX_EVENTS),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(self._processor)
        self._tracer = self._provider.get_tracer("sglang.srt", version)
        self._read_context = TraceContextTextMapPropagator().extract

    def ended(self, record: "AnswerRecord") -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        epoch = time.time_ns() - time.monotonic_ns()

        def at(seconds: float) -> int:
            return epoch + int(seconds * 1e9)

        whole = self._tracer.start_span(
            REQUEST,
            context=self._read_context(record.context),
            kind=SpanKind.SERVER,
            start_time=at(record.arrival),
            attributes=_attributes(record),
        )
        if record.error:
            whole.set_status(Status(StatusCode.ERROR, record.error))
        inside = set_span_in_context(whole)
        if record.times is not None:
            for stage in stages_of(record.times):
                span = self._tracer.start_span(stage.name, inside, start_time=at(stage.start))
                _add_events(span, stage, record.times, at)
                span.end(at(stage.end))
            finish = self._tracer.start_span(FINISH, inside, start_time=at(record.times.finished))
            finish.end(at(record.left))
        whole.end(at(record.left))

    def shut_down(self, timeout: float = END_TIMEOUT) -> None:
        """Sends what still waits, as far as that takes no longer than `timeout` seconds."""
        sending = threading.Thread(target=self._processor.shutdown, name="last-spans", daemon=True)
        sending.start()
        sending.join(timeout)
        if sending.is_alive():
            logger.warning("The last spans could not be sent within %g s.", timeout)
            self._exporter.shutdown()


def _attributes(record: "AnswerRecord") -> dict[str, Any]:
    sampling = record.wish.sampling
    attributes: dict[str, Any] = {
        "rid": record.wish.rid,
        "gen_ai.usage.input_tokens": len(record.wish.input_ids),
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
        "gen_ai.usage.output_tokens": record.completion_tokens,
        "gen_ai.response.finish_reasons": [record.finish_type],
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "sglang.num_retractions": record.num_retractions,
    }
    if sampling.max_new_tokens is not None:
        attributes["gen_ai.request.max_tokens"] = sampling.max_new_tokens
    return attributes


def _add_events(
    span: "Span", stage: Stage, times: "RequestTimes", at: Callable[[float], int]
) -> None:
    """Prefill passes, and in either stage the loss of memory and its return."""
    if stage.name not in (PREFILL, DECODE):
        return
    events: list[tuple[float, str, Mapping[str, int]]] = [
        *((end, "pass", {"tokens": tokens}) for end, tokens in times.chunks),
        *((when, "retracted", {}) for when in times.retractions),
        *((when, "readmitted", {}) for when in times.admissions[1:]),
    ]
    # A pass that ends a stage belongs to it, so the first moment belongs to the stage before.
    within = (event for event in sorted(events, key=lambda e: e[0]) if _is_within(event[0], stage))
    for when, name, attributes in within:
        span.add_event(name, attributes, at(when))


def _is_within(when: float, stage: Stage) -> bool:
    return stage.start <= when <= stage.end if stage.name == PREFILL else when > stage.start


def _reporting(otlp: Any, endpoint: str) -> "SpanExporter":
    """The exporter, which says once that spans are lost, and once that they arrive again."""
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class Reporting(SpanExporter):
        is_failing = False

        def export(self, spans: Any) -> SpanExportResult:
            result: SpanExportResult = otlp.export(spans)
            is_failing = result is not SpanExportResult.SUCCESS
            if is_failing and not self.is_failing:
                logger.warning("Spans are lost: the collector at %s takes none.", endpoint)
            elif self.is_failing and not is_failing:
                logger.info("The collector at %s takes spans again.", endpoint)
            self.is_failing = is_failing
            return result

        def shutdown(self) -> None:
            otlp.shutdown()

    return Reporting()
