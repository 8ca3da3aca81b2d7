"""Histograms: how long single requests and parts of the scheduler's work took."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Histogram

from sglang.srt.observability.buckets import SECONDS, TOKEN_COUNTS
from sglang.srt.observability.series import LABELS, PREFIX
from sglang.srt.observability.stages import QUEUE, STAGES, stages_of

if TYPE_CHECKING:
    from sglang.srt.core.messages import RequestTimes

TIMED_WORK = {  # name of `StepOutput.durations` → histogram
    "eviction": "eviction_duration_seconds",
    "load_back": "load_back_duration_seconds",
    "grammar": "grammar_compilation_time_seconds",
}
HISTOGRAMS = {
    "time_to_first_token_seconds": "From a request's arrival to its first token.",
    "inter_token_latency_seconds": "Between two tokens of an answer.",
    "e2e_request_latency_seconds": "From a request's arrival to its end.",
    "queue_time_seconds": "Of a request in the queue before it first got KV memory.",
    "per_stage_req_latency_seconds": "Of a request in each of its stages: "
    f"{', '.join(STAGES)}. A stage lasts through retractions.",
    "prompt_tokens_histogram": "Prompt tokens of a request.",
    "generation_tokens_histogram": "Tokens of an answer.",
    "eviction_duration_seconds": "Of one eviction from the prefix cache.",
    "load_back_duration_seconds": "Of one load from host memory into the KV pool.",
    "grammar_compilation_time_seconds": "Of one compilation of a constraint.",
}
STAGE_SERIES = "per_stage_req_latency_seconds"


Buckets = Mapping[str, Sequence[float]]  # series → upper bounds, where they are not the usual ones
USUAL: Buckets = {
    "prompt_tokens_histogram": TOKEN_COUNTS,
    "generation_tokens_histogram": TOKEN_COUNTS,
}


class RequestLatencies:
    """Fills the histograms."""

    def __init__(
        self, registry: CollectorRegistry, labels: Mapping[str, str], buckets: Buckets
    ) -> None:
        def histogram(name: str) -> Histogram:
            names = (*labels, "stage") if name == STAGE_SERIES else tuple(labels)
            return Histogram(
                PREFIX + name, HISTOGRAMS[name], names,
                buckets=list(buckets.get(name) or USUAL.get(name, SECONDS)), registry=registry,
            )  # fmt: skip

        made = {name: histogram(name) for name in HISTOGRAMS}
        by_stage = made.pop(STAGE_SERIES)
        self._by_stage = {name: by_stage.labels(**labels, stage=name) for name in STAGES}
        self._by_name = {name: each.labels(**labels) for name, each in made.items()}

    def first_token(self, seconds: float) -> None:
        self._by_name["time_to_first_token_seconds"].observe(seconds)

    def more_tokens(self, seconds: float, count: int) -> None:
        """`count` tokens that came together, `seconds` after the ones before."""
        for _ in range(count):
            self._by_name["inter_token_latency_seconds"].observe(seconds / count)

    def finished(self, seconds: float, prompt_tokens: int, completion_tokens: int) -> None:
        self._by_name["e2e_request_latency_seconds"].observe(seconds)
        self._by_name["prompt_tokens_histogram"].observe(prompt_tokens)
        self._by_name["generation_tokens_histogram"].observe(completion_tokens)

    def passed_stages(self, times: "RequestTimes") -> None:
        for stage in stages_of(times):
            self._by_stage[stage.name].observe(stage.seconds)
            if stage.name == QUEUE:
                self._by_name["queue_time_seconds"].observe(stage.seconds)

    def worked(self, durations: Mapping[str, Sequence[float]]) -> None:
        """What a step tells in `StepOutput.durations`."""
        for name, seconds in durations.items():
            for each in seconds:
                self._by_name[TIMED_WORK[name]].observe(each)


def documented_labels(series: str) -> tuple[str, ...]:
    return (*LABELS, "stage") if series == STAGE_SERIES else LABELS
