"""A worker's Prometheus metrics: the scheduler's series, and histograms when asked for."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sglang.srt.observability.latencies import Buckets, RequestLatencies
from sglang.srt.observability.series import (
    COUNTER,
    COUNTERS,
    GAUGES,
    LABELS,
    PREFIX,
    Series,
    WorkerSnapshot,
)


class EngineMetrics:
    """All series of one worker, in a registry of their own.

    The scheduler's are read when scraped and cost nothing; `latencies` costs a little per token
    and is there only with `buckets`.
    """

    def __init__(
        self,
        model_name: str,
        snapshot: Callable[[], WorkerSnapshot],
        *,
        buckets: Buckets | None = None,
        extra_labels: Mapping[str, str] | None = None,
    ) -> None:
        self._registry = CollectorRegistry()
        labels = dict(zip(LABELS, (model_name, "unified", "0", "0", "0"), strict=True))
        labels |= extra_labels or {}
        self._registry.register(_SchedulerCollector(labels, snapshot))
        self.latencies = (
            None if buckets is None else RequestLatencies(self._registry, labels, buckets)
        )

    def text(self) -> str:
        """Everything in Prometheus' text format."""
        return generate_latest(self._registry).decode()


class _SchedulerCollector(Collector):
    def __init__(self, labels: Mapping[str, str], snapshot: Callable[[], WorkerSnapshot]) -> None:
        self._labels = labels
        self._snapshot = snapshot

    def describe(self) -> list[Metric]:
        return []  # names are fixed; nothing to collect at registration

    def collect(self) -> Iterator[Metric]:
        current = self._snapshot()
        for series in (*GAUGES, *COUNTERS):
            value = series.value(current)
            if value is None:
                continue
            family = self._family(series)
            for own, number in (value if isinstance(value, Mapping) else {"": value}).items():
                family.add_metric(
                    (*self._labels.values(), *([own] if series.label else [])), number
                )
            yield family

    def _family(self, series: Series) -> CounterMetricFamily | GaugeMetricFamily:
        make = CounterMetricFamily if series.kind == COUNTER else GaugeMetricFamily
        names = (*self._labels, *([series.label] if series.label else []))
        return make(PREFIX + series.name, series.text, labels=names)
