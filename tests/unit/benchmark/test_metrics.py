"""The numbers of a result, by hand."""

import pytest

from sglang.benchmark.client import Outcome
from sglang.benchmark.errors import RequestFailed
from sglang.benchmark.metrics import meets, peak_per_second, summarize


def outcome(latency: float, ttft: float | None, output_len: int, **more: object) -> Outcome:
    itls = [] if ttft is None else [(latency - ttft) / (output_len - 1)] * (output_len - 1)
    return Outcome(
        latency=latency, ttft=ttft, itls=itls, output_len=output_len, input_len=10,
        **more,  # type: ignore[arg-type]
    )  # fmt: skip


def failed(kind: str, message: str) -> Outcome:
    return Outcome(latency=9.0, output_len=50, failure=RequestFailed(kind, message))


def test_rates_and_latencies_count_what_succeeded() -> None:
    numbers = summarize(
        [outcome(2.0, 0.5, 4, cached_len=6), outcome(4.0, 1.0, 11), failed("HTTP 503", "full")],
        4.0, {},
    )  # fmt: skip
    assert (numbers["completed"], numbers["failed"]) == (2, 1)
    assert (numbers["total_input_tokens"], numbers["total_output_tokens"]) == (20, 15)
    assert numbers["total_cached_tokens"] == 6
    assert numbers["request_throughput"] == 0.5
    assert (numbers["input_throughput"], numbers["output_throughput"]) == (5.0, 3.75)
    assert numbers["total_throughput"] == 8.75
    assert numbers["concurrency"] == 1.5
    assert numbers["mean_e2e_latency_ms"] == numbers["median_e2e_latency_ms"] == 3000
    assert numbers["std_e2e_latency_ms"] == 1000
    assert numbers["p90_e2e_latency_ms"] == pytest.approx(3800)
    assert numbers["mean_ttft_ms"] == 750 and numbers["p95_ttft_ms"] == pytest.approx(975)
    assert numbers["mean_tpot_ms"] == pytest.approx((500 + 300) / 2)
    assert numbers["mean_itl_ms"] == pytest.approx((3 * 500 + 10 * 300) / 13)
    assert numbers["max_itl_ms"] == pytest.approx(500)
    assert "request_goodput" not in numbers


def test_failures_are_counted_by_kind_with_the_first_message() -> None:
    outcomes = [failed("HTTP 503", "full"), failed("timeout", "t"), failed("HTTP 503", "again")]
    assert summarize(outcomes, 1.0, {})["failures"] == {
        "HTTP 503": {"count": 2, "first": "full"},
        "timeout": {"count": 1, "first": "t"},
    }


def test_what_was_not_measured_is_none() -> None:
    numbers = summarize([outcome(2.0, None, 4)], 2.0, {})
    assert numbers["mean_ttft_ms"] is numbers["p99_tpot_ms"] is numbers["max_itl_ms"] is None
    assert numbers["mean_e2e_latency_ms"] == 2000
    assert summarize([], 0.0, {})["mean_e2e_latency_ms"] is None


def test_goodput_counts_requests_that_meet_every_goal() -> None:
    fast, slow = outcome(2.0, 0.5, 4), outcome(4.0, 1.0, 11)
    assert summarize([fast, slow], 4.0, {"ttft": 600.0})["request_goodput"] == 0.25
    assert summarize([fast, slow], 4.0, {"ttft": 600.0, "tpot": 400.0})["request_goodput"] == 0
    assert summarize([fast, slow], 4.0, {"e2el": 4000.0})["request_goodput"] == 0.5
    assert meets(Outcome(latency=1.0, ttft=1.0, output_len=1), {"tpot": 1.0})
    assert not meets(Outcome(latency=1.0, ttft=None, output_len=5), {"ttft": 9e9})


def test_peak_is_the_fullest_second() -> None:
    spread = Outcome(token_times=[(0.0, 1), (0.5, 2), (1.2, 4), (1.4, 1), (3.0, 5)])
    assert peak_per_second([spread]) == 7.0
    assert peak_per_second([spread, Outcome(token_times=[(2.9, 3)])]) == 8.0
    assert peak_per_second([]) == 0.0
