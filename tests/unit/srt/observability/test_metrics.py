"""Metric names, labels and values."""

from collections.abc import Mapping

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sglang.srt.core.messages import LoadSnapshot, ModelCard, Ready, RequestTimes
from sglang.srt.observability.latencies import HISTOGRAMS
from sglang.srt.observability.metrics import EngineMetrics
from sglang.srt.observability.series import COUNTERS, GAUGES, LABELS, PREFIX, WorkerSnapshot

OWN = {"model_name": "m", "engine_type": "unified", "tp_rank": "0", "pp_rank": "0", "dp_rank": "0"}
Samples = dict[tuple[str, str], float]


def ready() -> Ready:
    card = ModelCard(
        architectures=[], model_type="", vocab_size=9, context_len=64, eos_token_ids=[],
        bos_token_id=None, pad_token_id=None, tokenizer_folder="", default_sampling_params={},
    )  # fmt: skip
    return Ready(
        protocol_version=1, model=card, max_total_num_tokens=100, max_req_input_len=63,
        max_running_requests=8, page_size=4, kv_cell_bytes=1000, weight_bytes=1,
        startup_seconds=2.5,
    )  # fmt: skip


def metrics_of(
    load: LoadSnapshot,
    *,
    card: Ready | None = None,
    buckets: Mapping[str, tuple[float, ...]] | None = None,
    **labels: str,
) -> EngineMetrics:
    return EngineMetrics(
        "m", lambda: WorkerSnapshot(load, card), buckets=buckets, extra_labels=labels
    )


def samples(metrics: EngineMetrics, labels: Mapping[str, str] = OWN) -> Samples:
    """(name without prefix, the values of the labels that are the series' own) → value."""
    found: Samples = {}
    for family in text_string_to_metric_families(metrics.text()):
        for sample in family.samples:
            assert labels.items() <= sample.labels.items(), sample
            own = [value for name, value in sample.labels.items() if name not in labels]
            found[sample.name.removeprefix(PREFIX), " ".join(own)] = sample.value
    return found


def test_gauges_and_counters_follow_the_snapshot() -> None:
    load = LoadSnapshot(
        num_running_reqs=2, num_waiting_reqs=3, num_grammar_queue_reqs=1, num_retracted_reqs=1,
        num_paused_reqs=5, num_used_tokens=30, num_evictable_tokens=20,
        max_total_num_tokens=100, max_running_requests=8, prompt_tokens_total=40,
        cached_tokens_total=10, generation_tokens_total=7, evicted_tokens_total=5,
        prefill_compute_tokens_total=31, prefill_cache_tokens_total=9, decode_tokens_total=6,
        num_so_requests_total=4, num_grammar_total=3, num_grammar_cache_hit_total=2,
        num_grammars_cached=6, grammar_cache_bytes=700,
    )  # fmt: skip
    found = samples(metrics_of(load, card=ready()))
    assert {key: found[key] for key in found if not key[0].startswith("hicache")} == {
        ("num_running_reqs", ""): 2, ("num_queue_reqs", ""): 3,
        ("num_grammars_cached", ""): 6, ("grammar_cache_bytes", ""): 700,
        ("num_grammar_queue_reqs", ""): 1, ("num_retracted_reqs", ""): 1,
        ("num_paused_reqs", ""): 5, ("utilization", ""): 0.25, ("num_used_tokens", ""): 30,
        ("kv_used_tokens", ""): 30,
        ("kv_evictable_tokens", ""): 20, ("kv_available_tokens", ""): 50,
        ("max_total_num_tokens", ""): 100, ("token_usage", ""): 0.3,
        ("full_token_usage", ""): 0.3, ("gen_throughput", ""): 0, ("cache_hit_rate", ""): 0.25,
        ("new_token_ratio", ""): 0, ("page_size", ""): 4, ("num_pages", ""): 25,
        ("kv_bytes_per_token", ""): 1000, ("context_len", ""): 64,
        ("startup_time_seconds", ""): 2.5,
        ("num_requests_total", ""): 0, ("num_so_requests_total", ""): 4,
        ("num_aborted_requests_total", ""): 0, ("num_retracted_requests_total", ""): 0,
        ("prompt_tokens_total", ""): 40, ("cached_tokens_total", "device"): 10,
        ("generation_tokens_total", ""): 7, ("realtime_tokens_total", "prefill_compute"): 31,
        ("realtime_tokens_total", "prefill_cache"): 9, ("realtime_tokens_total", "decode"): 6,
        ("evicted_tokens_total", ""): 5, ("num_grammar_total", ""): 3,
        ("num_grammar_cache_hit_total", ""): 2, ("num_grammar_timeout_total", ""): 0,
        ("num_grammar_aborted_total", ""): 0,
    }  # fmt: skip
    load.generation_tokens_total = 8
    assert samples(metrics_of(load))["generation_tokens_total", ""] == 8


def test_a_host_tier_adds_its_series() -> None:
    load = LoadSnapshot(
        host_total_tokens=500, host_used_tokens=40, load_back_tokens_total=3,
        prefetched_tokens_total=2, backuped_tokens_total=50, cached_tokens_total=30,
        cached_host_tokens_total=12, cached_storage_tokens_total=8,
    )  # fmt: skip
    found = samples(metrics_of(load))
    assert (found["hicache_host_used_tokens", ""], found["hicache_host_total_tokens", ""]) == (
        40,
        500,
    )
    assert found["load_back_tokens_total", ""] == 3
    tiers = [found["cached_tokens_total", tier] for tier in ("device", "host", "storage")]
    assert tiers == [10, 12, 8]
    assert found["prefetched_tokens_total", ""] == 2
    assert found["backuped_tokens_total", ""] == 50


def test_a_window_pool_adds_its_usage() -> None:
    load = LoadSnapshot(swa_used_tokens=30, swa_total_tokens=40)
    assert samples(metrics_of(load))["swa_token_usage", ""] == 0.75


def test_sizes_appear_once_the_model_is_loaded() -> None:
    assert "sglang:page_size" not in metrics_of(LoadSnapshot()).text()


def test_names_are_taken_once() -> None:
    names = [series.name for series in (*GAUGES, *COUNTERS)] + list(HISTOGRAMS)
    assert len(set(names)) == len(names)


def test_extra_labels_are_on_every_series() -> None:
    metrics = metrics_of(LoadSnapshot(host_total_tokens=1), card=ready(), buckets={}, region="n")
    assert samples(metrics, {**OWN, "region": "n"})


def test_latencies_are_there_only_when_asked_for() -> None:
    assert metrics_of(LoadSnapshot()).latencies is None
    metrics = metrics_of(LoadSnapshot(), buckets={})
    assert metrics.latencies is not None
    metrics.latencies.more_tokens(0.4, 4)
    found = samples(metrics)
    assert found["inter_token_latency_seconds_count", ""] == 4
    assert found["inter_token_latency_seconds_sum", ""] == pytest.approx(0.4)


def test_buckets_are_those_that_were_chosen() -> None:
    metrics = metrics_of(LoadSnapshot(), buckets={"generation_tokens_histogram": (5.0, 10.0)})
    assert metrics.latencies is not None
    metrics.latencies.finished(1.0, prompt_tokens=3, completion_tokens=7)
    found = samples(metrics)
    bounds = {own: value for (name, own), value in found.items()
              if name == "generation_tokens_histogram_bucket"}  # fmt: skip
    assert bounds == {"5.0": 0, "10.0": 1, "+Inf": 1}
    assert found["prompt_tokens_histogram_bucket", "8.0"] == 1


def test_stages_and_work_are_observed() -> None:
    metrics = metrics_of(LoadSnapshot(), buckets={})
    assert metrics.latencies is not None
    metrics.latencies.passed_stages(
        RequestTimes(received=1.0, admissions=[3.0], prefilled=3.5, finished=10.0)
    )
    metrics.latencies.worked({"eviction": [0.1, 0.2], "load_back": [0.3], "grammar": [4.0]})
    found = samples(metrics)
    sums = {own: found["per_stage_req_latency_seconds_sum", own]
            for own in ("queue", "prefill", "decode")}  # fmt: skip
    assert sums == {"queue": 2.0, "prefill": 0.5, "decode": 6.5}
    assert found["per_stage_req_latency_seconds_count", "grammar"] == 0
    assert found["queue_time_seconds_sum", ""] == 2.0
    assert found["eviction_duration_seconds_sum", ""] == pytest.approx(0.3)
    assert found["load_back_duration_seconds_count", ""] == 1
    assert found["grammar_compilation_time_seconds_sum", ""] == 4.0


def test_own_labels_are_those_that_options_refuse() -> None:
    from sglang.srt.arg_groups.observing import OWN_LABELS

    own = {series.label for series in (*GAUGES, *COUNTERS) if series.label}
    assert {*LABELS, *own, "stage"} == OWN_LABELS
