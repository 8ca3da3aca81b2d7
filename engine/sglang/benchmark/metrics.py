"""From outcomes to numbers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sglang.benchmark.client import Outcome

Numbers = dict[str, Any]


def summarize(outcomes: Sequence[Outcome], duration: float, goals: Mapping[str, float]) -> Numbers:
    """Rates over the whole duration; latencies of the requests that succeeded."""
    good = [outcome for outcome in outcomes if outcome.failure is None]
    input_len = sum(outcome.input_len for outcome in good)
    output_len = sum(outcome.output_len for outcome in good)
    seconds = max(duration, 1e-9)
    numbers: Numbers = {
        "duration": duration,
        "completed": len(good),
        "failed": len(outcomes) - len(good),
        "failures": failures(outcomes),
        "total_input_tokens": input_len,
        "total_output_tokens": output_len,
        "total_cached_tokens": sum(outcome.cached_len for outcome in good),
        "request_throughput": len(good) / seconds,
        "input_throughput": input_len / seconds,
        "output_throughput": output_len / seconds,
        "peak_output_throughput": peak_per_second(good),
        "total_throughput": (input_len + output_len) / seconds,
        "concurrency": sum(outcome.latency for outcome in good) / seconds,
        **_latencies(good),
    }
    if goals:
        met = sum(meets(outcome, goals) for outcome in good)
        numbers["request_goodput"] = met / seconds
    return numbers


def failures(outcomes: Sequence[Outcome]) -> dict[str, dict[str, Any]]:
    """How often each kind of failure came, and what the first one said."""
    kinds = Counter(o.failure.kind for o in outcomes if o.failure is not None)
    first: dict[str, str] = {}
    for outcome in outcomes:
        if outcome.failure is not None:
            first.setdefault(outcome.failure.kind, outcome.failure.message)
    return {kind: {"count": n, "first": first[kind]} for kind, n in kinds.most_common()}


def meets(outcome: Outcome, goals: Mapping[str, float]) -> bool:
    """Whether every goal (in milliseconds) is met. A time that is not known meets none, but an
    answer of one token has no time per further token and so meets that goal."""
    for name, limit in goals.items():
        if name == "tpot" and outcome.output_len < 2:
            continue
        seconds = {"ttft": outcome.ttft, "tpot": outcome.tpot, "e2el": outcome.latency}[name]
        if seconds is None or seconds * 1000 > limit:
            return False
    return True


def peak_per_second(outcomes: Sequence[Outcome]) -> float:
    """Most tokens of all answers within one second."""
    events = sorted(event for outcome in outcomes for event in outcome.token_times)
    most = inside = first = 0
    for when, count in events:
        inside += count
        while events[first][0] <= when - 1:
            inside -= events[first][1]
            first += 1
        most = max(most, inside)
    return float(most)


def _latencies(good: Sequence[Outcome]) -> Numbers:
    itls = [gap for outcome in good for gap in outcome.itls]
    return {
        **_spread("e2e_latency", [outcome.latency for outcome in good], (90, 99)),
        **_spread("ttft", [o.ttft for o in good if o.ttft is not None], (90, 95, 99)),
        **_spread("tpot", [o.tpot for o in good if o.tpot is not None], (90, 95, 99)),
        **_spread("itl", itls, (90, 95, 99)),
        "max_itl_ms": max(itls) * 1000 if itls else None,
    }


def _spread(name: str, seconds: Sequence[float], percentiles: tuple[int, ...]) -> Numbers:
    """Milliseconds; None where nothing was measured."""
    names = ["mean", "median", "std", *(f"p{percent}" for percent in percentiles)]
    if not seconds:
        return {f"{which}_{name}_ms": None for which in names}
    ms = np.asarray(seconds) * 1000
    values = [ms.mean(), np.median(ms), ms.std(), *np.percentile(ms, percentiles)]
    return {f"{which}_{name}_ms": float(v) for which, v in zip(names, values, strict=True)}
