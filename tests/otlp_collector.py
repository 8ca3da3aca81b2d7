"""A collector that speaks OTLP over gRPC and keeps the spans that it is sent, for tests."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

GUARD = 30.0  # seconds after which a wait fails


@dataclass(frozen=True)
class Event:
    name: str
    time: int  # nanoseconds since the epoch
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Span:
    """Ids are lowercase hex, as in `traceparent`; times are nanoseconds since the epoch."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str  # empty: a root
    start: int
    end: int
    attributes: dict[str, Any]
    events: list[Event]
    is_error: bool
    error: str
    resource: dict[str, Any]


class OtlpCollector(trace_service_pb2_grpc.TraceServiceServicer):
    """`endpoint` is HOST:PORT. Spans come in the order of their arrival."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.endpoint = ""
        self._changed = threading.Condition()

    def Export(self, request: Any, context: Any) -> Any:
        found = [
            _span(span, _values(entry.resource.attributes))
            for entry in request.resource_spans
            for scope in entry.scope_spans
            for span in scope.spans
        ]
        with self._changed:
            self.spans += found
            self._changed.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def of_trace(self, trace_id: str) -> list[Span]:
        with self._changed:
            return [span for span in self.spans if span.trace_id == trace_id]

    def wait(self, enough: Callable[[list[Span]], bool], timeout: float = GUARD) -> list[Span]:
        """All spans once `enough` of them says so; AssertionError when that never comes."""
        with self._changed:
            came = self._changed.wait_for(lambda: enough(self.spans), timeout)
            assert came, f"only these spans came: {[span.name for span in self.spans]}"
            return list(self.spans)

    def wait_for_names(self, trace_id: str, *names: str) -> dict[str, Span]:
        """The spans of a trace by name, once every one of `names` is there."""

        def enough(spans: list[Span]) -> bool:
            return set(names) <= {span.name for span in spans if span.trace_id == trace_id}

        return {span.name: span for span in self.wait(enough) if span.trace_id == trace_id}


@contextmanager
def otlp_collector(address: str = "127.0.0.1:0") -> Iterator[OtlpCollector]:
    """A collector that listens; it ends with the block."""
    collector = OtlpCollector()
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port(address)
    collector.endpoint = f"{address.rpartition(':')[0]}:{port}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()


def _span(span: Any, resource: dict[str, Any]) -> Span:
    return Span(
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        attributes=_values(span.attributes),
        events=[
            Event(event.name, event.time_unix_nano, _values(event.attributes))
            for event in span.events
        ],
        is_error=span.status.code == span.status.STATUS_CODE_ERROR,
        error=span.status.message,
        resource=resource,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {entry.key: _value(entry.value) for entry in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(entry) for entry in value.array_value.values]
    return getattr(value, kind) if kind else None
