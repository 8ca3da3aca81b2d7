"""Metric names, labels and values."""

from sglang.srt.core.messages import LoadSnapshot
from sglang.srt.observability.metrics import EngineMetrics, WorkerSnapshot

LABELS = 'dp_rank="0",engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"'


def metrics_of(load: LoadSnapshot, *, with_latencies: bool = False) -> EngineMetrics:
    return EngineMetrics("m", lambda: WorkerSnapshot(load, None), with_latencies=with_latencies)


def test_gauges_and_counters_follow_the_snapshot() -> None:
    load = LoadSnapshot(
        num_running_reqs=2, num_waiting_reqs=1, num_used_tokens=30, num_evictable_tokens=20,
        max_total_num_tokens=100, max_running_requests=8, prompt_tokens_total=40,
        cached_tokens_total=10, generation_tokens_total=7, evicted_tokens_total=5,
    )  # fmt: skip
    text = metrics_of(load).text()
    expected = {
        "num_running_reqs": 2, "num_queue_reqs": 1, "kv_available_tokens": 50,
        "kv_evictable_tokens": 20, "token_usage": 0.3, "cache_hit_rate": 0.25,
        "utilization": 0.25, "prompt_tokens_total": 40, "generation_tokens_total": 7,
        "evicted_tokens_total": 5,
    }  # fmt: skip
    for name, value in expected.items():
        assert f"sglang:{name}{{{LABELS}}} {float(value)}" in text
    cached = 'sglang:cached_tokens_total{cache_source="device",'
    assert f"{cached}{LABELS}}} 10.0" in text
    load.generation_tokens_total = 8
    assert f"sglang:generation_tokens_total{{{LABELS}}} 8.0" in metrics_of(load).text()


def test_sizes_appear_once_the_model_is_loaded() -> None:
    assert "sglang:page_size" not in metrics_of(LoadSnapshot()).text()


def test_latencies_are_there_only_when_asked_for() -> None:
    assert metrics_of(LoadSnapshot()).latencies is None
    metrics = metrics_of(LoadSnapshot(), with_latencies=True)
    assert metrics.latencies is not None
    metrics.latencies.more_tokens(0.4, 4)
    text = metrics.text()
    assert f"sglang:inter_token_latency_seconds_count{{{LABELS}}} 4.0" in text
    assert f"sglang:inter_token_latency_seconds_sum{{{LABELS}}} 0.4" in text
