"""The engine's Prometheus metrics: gauges and counters of the scheduler, latencies of requests."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from sglang.srt.core.messages import LoadSnapshot, Ready

LABELS = ("model_name", "engine_type", "tp_rank", "pp_rank", "dp_rank")
SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
TOKEN_COUNTS = (1, 8, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


@dataclass(frozen=True)
class WorkerSnapshot:
    """What is known of the scheduler at one moment. `ready` is None while it loads."""

    load: "LoadSnapshot"
    ready: "Ready | None"


class EngineMetrics:
    """All series of one worker, in a registry of their own.

    The scheduler's are read when scraped and cost nothing; `latencies` costs a little per token
    and is there only when asked for.
    """

    def __init__(
        self, model_name: str, snapshot: Callable[[], WorkerSnapshot], *, with_latencies: bool
    ) -> None:
        self._registry = CollectorRegistry()
        values = (model_name, "unified", "0", "0", "0")
        self._registry.register(_SchedulerCollector(values, snapshot))
        self.latencies = RequestLatencies(self._registry, values) if with_latencies else None

    def text(self) -> str:
        """Everything in Prometheus' text format."""
        return generate_latest(self._registry).decode()


class RequestLatencies:
    """Histograms of single requests, in seconds and tokens."""

    def __init__(self, registry: CollectorRegistry, values: tuple[str, ...]) -> None:
        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            made = Histogram(f"sglang:{name}", text, LABELS, buckets=buckets, registry=registry)
            return made.labels(*values)

        self._first_token = histogram(
            "time_to_first_token_seconds", "From a request's arrival to its first token.", SECONDS
        )
        self._between_tokens = histogram(
            "inter_token_latency_seconds", "Between two tokens of an answer.", SECONDS
        )
        self._whole = histogram(
            "e2e_request_latency_seconds", "From a request's arrival to its end.", SECONDS
        )
        self._prompt = histogram(
            "prompt_tokens_histogram", "Prompt tokens of a request.", TOKEN_COUNTS
        )
        self._generation = histogram(
            "generation_tokens_histogram", "Tokens of an answer.", TOKEN_COUNTS
        )

    def first_token(self, seconds: float) -> None:
        self._first_token.observe(seconds)

    def more_tokens(self, seconds: float, count: int) -> None:
        """`count` tokens that came together, `seconds` after the ones before."""
        for _ in range(count):
            self._between_tokens.observe(seconds / count)

    def finished(self, seconds: float, prompt_tokens: int, completion_tokens: int) -> None:
        self._whole.observe(seconds)
        self._prompt.observe(prompt_tokens)
        self._generation.observe(completion_tokens)


class _SchedulerCollector(Collector):
    """Reads the scheduler's latest snapshot when scraped, so a step costs nothing."""

    def __init__(self, values: tuple[str, ...], snapshot: Callable[[], WorkerSnapshot]) -> None:
        self._values = values
        self._snapshot = snapshot

    def describe(self) -> list[Metric]:
        return []  # names are fixed; nothing to collect at registration

    def collect(self) -> Iterator[Metric]:
        current = self._snapshot()
        gauges = _load_gauges(current.load)
        if current.ready is not None:
            gauges |= _fixed_gauges(current.ready)
        for name, (text, value) in gauges.items():
            gauge = GaugeMetricFamily(f"sglang:{name}", text, labels=LABELS)
            gauge.add_metric(self._values, value)
            yield gauge
        for name, (text, value) in _counters(current.load).items():
            counter = CounterMetricFamily(f"sglang:{name}", text, labels=LABELS)
            counter.add_metric(self._values, value)
            yield counter
        cached = CounterMetricFamily(
            "sglang:cached_tokens",
            "Prompt tokens that came from the prefix cache.",
            labels=(*LABELS, "cache_source"),
        )
        cached.add_metric((*self._values, "device"), current.load.cached_tokens_total)
        yield cached


def _load_gauges(load: "LoadSnapshot") -> dict[str, tuple[str, float]]:
    free = load.max_total_num_tokens - load.num_used_tokens - load.num_evictable_tokens
    running = load.num_running_reqs
    return {
        "num_running_reqs": ("Requests in the running batch.", running),
        "num_queue_reqs": ("Requests that wait.", load.num_waiting_reqs),
        "num_used_tokens": ("KV tokens in use by requests.", load.num_used_tokens),
        "kv_used_tokens": ("KV tokens in use by requests.", load.num_used_tokens),
        "kv_evictable_tokens": ("KV tokens only the cache holds.", load.num_evictable_tokens),
        "kv_available_tokens": ("Free KV tokens.", max(free, 0)),
        "token_usage": ("Used share of the KV pool.", load.token_usage),
        "gen_throughput": ("Generated tokens per second.", load.gen_throughput),
        "cache_hit_rate": ("Share of prompt tokens from the cache.", load.cache_hit_rate),
        "max_total_num_tokens": ("KV tokens in all.", load.max_total_num_tokens),
        "new_token_ratio": ("Share of a budget that is planned for.", load.new_token_ratio),
        "utilization": (
            "Running share of the most requests.",
            running / load.max_running_requests if load.max_running_requests else 0.0,
        ),
    }


def _fixed_gauges(ready: "Ready") -> dict[str, tuple[str, float]]:
    return {
        "page_size": ("Tokens per KV page.", ready.page_size),
        "num_pages": ("KV pages in all.", ready.max_total_num_tokens // ready.page_size),
        "context_len": ("Most tokens of prompt and answer.", ready.model.context_len),
        "startup_time_seconds": ("From start to ready.", ready.startup_seconds),
    }


def _counters(load: "LoadSnapshot") -> dict[str, tuple[str, float]]:
    return {
        "prompt_tokens": ("Prompt tokens of admitted requests.", load.prompt_tokens_total),
        "generation_tokens": ("Generated tokens.", load.generation_tokens_total),
        "num_requests": ("Requests that came in.", load.num_requests_total),
        "num_aborted_requests": ("Requests that were aborted.", load.num_aborted_requests_total),
        "num_retracted_requests": (
            "Times a request lost its memory and was queued again.",
            load.num_retracted_requests_total,
        ),
        "evicted_tokens": ("KV tokens dropped from the cache.", load.evicted_tokens_total),
    }
