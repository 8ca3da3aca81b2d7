"""One trace of a request through client, gateway and worker."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e import processes
from tests.otlp_collector import Span, otlp_collector

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CONTEXT = {"traceparent": f"00-{TRACE}-{CALLER}-01", "tracestate": "vendor=7"}
PROMPT = {"text": "The sea is", "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
BROKEN = {"text": "The sea is", "sampling_params": {"regex": "a+("}}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Answers of a gateway before one worker, and all spans that both have sent."""
    folder: Path = tmp_path_factory.mktemp("traces")
    with otlp_collector() as collector:
        flags = ("--enable-trace", "--otlp-traces-endpoint", collector.endpoint)
        with (
            processes.engine(folder, *flags) as worker,
            processes.gateway(folder, [worker], *flags) as gateway,
        ):
            url = gateway.url
            answers = [
                processes.call(f"{url}/generate", PROMPT, headers=CONTEXT),
                processes.call(f"{url}/generate", PROMPT),
                processes.call(f"{url}/generate", BROKEN),
                processes.call(f"{url}/v1/models"),
            ]
        # Both have ended: the last spans are sent.
        return {"answers": answers, "spans": list(collector.spans), "worker": worker.grpc_url}


def named(spans: list[Span], service: str, trace: str) -> dict[str, Span]:
    found = [s for s in spans if s.trace_id == trace and s.resource["service.name"] == service]
    by_name = {span.name: span for span in found}
    assert len(by_name) == len(found)
    return by_name


def test_the_gateways_spans_hang_under_the_clients_and_the_workers_under_the_gateways(
    told: dict[str, Any],
) -> None:
    assert [status for status, _, _ in told["answers"]] == [200, 200, 400, 200]
    own = named(told["spans"], "smg", TRACE)
    assert set(own) == {"POST /generate", "choose worker", "Generate", "stream"}
    request, call = own["POST /generate"], own["Generate"]
    assert request.parent_id == CALLER
    assert own["choose worker"].parent_id == call.parent_id == request.span_id
    assert own["stream"].parent_id == call.span_id
    assert request.start <= own["choose worker"].start <= call.start <= own["stream"].start
    assert own["stream"].end <= call.end <= request.end
    engine = named(told["spans"], "sglang", TRACE)
    roots = [span for span in engine.values() if span.parent_id == call.span_id]
    assert len(roots) == 1 and len(engine) > 1
    assert all(call.start <= span.start <= span.end for span in engine.values())


def test_spans_say_what_was_asked_and_what_came_of_it(told: dict[str, Any]) -> None:
    own = named(told["spans"], "smg", TRACE)
    request = own["POST /generate"].attributes
    assert request["http.response.status_code"] == 200
    assert (request["http.route"], request["url.path"]) == ("/generate", "/generate")
    (_, answer, headers) = told["answers"][0]
    assert request["request.id"] == headers["x-request-id"]
    assert own["Generate"].attributes["smg.worker"] == told["worker"]
    assert own["Generate"].attributes["smg.attempt"] == 1
    chosen = own["choose worker"].attributes
    assert chosen["smg.worker"] == told["worker"]
    assert chosen["smg.prompt_tokens"] == answer["meta_info"]["prompt_tokens"]


def test_a_request_without_context_begins_a_trace_of_its_own(told: dict[str, Any]) -> None:
    roots = [span for span in told["spans"] if not span.parent_id]
    generations = [span for span in roots if span.name == "POST /generate"]
    assert len(generations) == 2 and len({span.trace_id for span in roots}) == len(roots)
    whole = next(s for s in generations if s.attributes["http.response.status_code"] == 200)
    assert named(told["spans"], "sglang", whole.trace_id)
    refused = next(s for s in generations if s.attributes["http.response.status_code"] == 400)
    call = named(told["spans"], "smg", refused.trace_id)["Generate"]
    assert call.is_error and not refused.is_error
    assert {span.name for span in roots} == {"POST /generate", "GET /v1/models"}


def test_a_missing_collector_is_told_once(tmp_path: Path) -> None:
    with otlp_collector() as collector:
        endpoint = collector.endpoint
    flags = ("--enable-trace", "--otlp-traces-endpoint", endpoint)
    with processes.front_door(tmp_path, *flags) as server:
        assert processes.call(f"{server.url}/v1/models")[0] == 200
        processes.until(lambda: "spans are lost" in server.log_text())
        # The span of this one is sent at the end, in vain again.
        assert processes.call(f"{server.url}/v1/models")[0] == 200
    assert server.log_text().count("spans are lost") == 1, server.log_text()
    assert "ExportError" not in server.log_text()


def test_a_front_door_makes_them_too(tmp_path: Path) -> None:
    with otlp_collector() as collector:
        flags = ("--enable-trace", "--otlp-traces-endpoint", collector.endpoint)
        with processes.front_door(tmp_path, *flags) as server:
            assert processes.call(f"{server.url}/generate", PROMPT, headers=CONTEXT)[0] == 200
        own = named(collector.spans, "smg", TRACE)
        assert own["POST /generate"].parent_id == CALLER
        assert named(collector.spans, "sglang", TRACE)
