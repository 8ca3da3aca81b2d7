"""Every gauge and counter of a worker: its name, its meaning, and where its value stands.

They are read from the scheduler's latest snapshot when somebody asks, so a step costs nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang.srt.core.messages import LoadSnapshot, Ready

PREFIX = "sglang:"
LABELS = ("model_name", "engine_type", "tp_rank", "pp_rank", "dp_rank")
GAUGE, COUNTER = "gauge", "counter"
ByLabel = Mapping[str, float]


@dataclass(frozen=True)
class WorkerSnapshot:
    """What is known of the scheduler at one moment. `ready` is None while it loads."""

    load: "LoadSnapshot"
    ready: "Ready | None"


@dataclass(frozen=True)
class Series:
    """`value` gives a number, or a number for each value of `label`, or None: nothing to show."""

    name: str
    kind: str
    text: str
    value: Callable[[WorkerSnapshot], "float | ByLabel | None"]
    label: str = ""


def _of_load(read: "Callable[[LoadSnapshot], float]") -> Callable[[WorkerSnapshot], float]:
    return lambda snapshot: read(snapshot.load)


def _of_ready(read: "Callable[[Ready], float]") -> Callable[[WorkerSnapshot], float | None]:
    return lambda snapshot: None if snapshot.ready is None else read(snapshot.ready)


def _of_host(read: "Callable[[LoadSnapshot], float]") -> Callable[[WorkerSnapshot], float | None]:
    """Only where there is a host tier."""
    return lambda snapshot: read(snapshot.load) if snapshot.load.host_total_tokens else None


def _window_usage(snapshot: WorkerSnapshot) -> float | None:
    load = snapshot.load
    return load.swa_used_tokens / load.swa_total_tokens if load.swa_total_tokens else None


def _cached_by_source(snapshot: WorkerSnapshot) -> ByLabel:
    load = snapshot.load
    if not load.host_total_tokens:
        return {"device": load.cached_tokens_total}
    host, storage = load.cached_host_tokens_total, load.cached_storage_tokens_total
    on_device = load.cached_tokens_total - host - storage
    return {"device": on_device, "host": host, "storage": storage}


def _tokens_by_mode(snapshot: WorkerSnapshot) -> ByLabel:
    load = snapshot.load
    return {
        "prefill_compute": load.prefill_compute_tokens_total,
        "prefill_cache": load.prefill_cache_tokens_total,
        "decode": load.decode_tokens_total,
    }


GAUGES = (
    Series("num_running_reqs", GAUGE, "Requests that have KV memory, those in chunks included.",
           _of_load(lambda load: load.num_running_reqs)),
    Series("num_queue_reqs", GAUGE, "Requests that wait, for whatever reason.",
           _of_load(lambda load: load.num_waiting_reqs)),
    Series("num_grammar_queue_reqs", GAUGE,
           "Of those that wait: requests whose grammar is being compiled.",
           _of_load(lambda load: load.num_grammar_queue_reqs)),
    Series("num_grammars_cached", GAUGE, "Constraints that are kept, with those that are refused.",
           _of_load(lambda load: load.num_grammars_cached)),
    Series("grammar_cache_bytes", GAUGE, "Memory of the constraints that are kept.",
           _of_load(lambda load: load.grammar_cache_bytes)),
    Series("num_retracted_reqs", GAUGE,
           "Of those that wait: requests that lost their KV memory and will get it again.",
           _of_load(lambda load: load.num_retracted_reqs)),
    Series("num_paused_reqs", GAUGE, "Requests that a pause of generation holds.",
           _of_load(lambda load: load.num_paused_reqs)),
    Series("utilization", GAUGE, "Running requests, as a share of the most that may run.",
           _of_load(lambda load: load.utilization)),
    Series("num_used_tokens", GAUGE, "KV tokens that eviction could not free.",
           _of_load(lambda load: load.num_used_tokens)),
    Series("kv_used_tokens", GAUGE, "The same as num_used_tokens.",
           _of_load(lambda load: load.num_used_tokens)),
    Series("kv_evictable_tokens", GAUGE, "KV tokens that only the prefix cache holds.",
           _of_load(lambda load: load.num_evictable_tokens)),
    Series("kv_available_tokens", GAUGE, "Free KV tokens.",
           _of_load(lambda load: load.num_free_tokens)),
    Series("max_total_num_tokens", GAUGE, "KV tokens in all.",
           _of_load(lambda load: load.max_total_num_tokens)),
    Series("token_usage", GAUGE, "num_used_tokens as a share of max_total_num_tokens.",
           _of_load(lambda load: load.token_usage)),
    Series("full_token_usage", GAUGE,
           "Used share of the pool of layers with full attention; the same as token_usage.",
           _of_load(lambda load: load.token_usage)),
    Series("swa_token_usage", GAUGE,
           "Used share of the pool of layers with a window; where a model has such layers only.",
           _window_usage),
    Series("hicache_host_used_tokens", GAUGE,
           "KV tokens that host memory holds; with a host tier only.",
           _of_host(lambda load: load.host_used_tokens)),
    Series("hicache_host_total_tokens", GAUGE,
           "KV tokens that host memory has room for; with a host tier only.",
           _of_host(lambda load: load.host_total_tokens)),
    Series("gen_throughput", GAUGE, "Generated tokens per second, over the last second or step.",
           _of_load(lambda load: load.gen_throughput)),
    Series("cache_hit_rate", GAUGE, "cached_tokens as a share of prompt_tokens, since the start.",
           _of_load(lambda load: load.cache_hit_rate)),
    Series("new_token_ratio", GAUGE,
           "Share of the running requests' allowed answers for which room is kept.",
           _of_load(lambda load: load.new_token_ratio)),
    Series("page_size", GAUGE, "Tokens per KV page.", _of_ready(lambda ready: ready.page_size)),
    Series("num_pages", GAUGE, "KV pages in all.",
           _of_ready(lambda ready: ready.max_total_num_tokens // ready.page_size)),
    Series("kv_bytes_per_token", GAUGE, "Bytes that one token takes in the KV pool, all layers.",
           _of_ready(lambda ready: ready.kv_cell_bytes)),
    Series("context_len", GAUGE, "Most tokens of a prompt and its answer.",
           _of_ready(lambda ready: ready.model.context_len)),
    Series("startup_time_seconds", GAUGE, "From the scheduler's start to the end of its warm-up.",
           _of_ready(lambda ready: ready.startup_seconds)),
)  # fmt: skip

COUNTERS = (
    Series("num_requests", COUNTER, "Answers that were asked for; n answers of a request are n.",
           _of_load(lambda load: load.num_requests_total)),
    Series("num_so_requests", COUNTER, "Of those: answers under a constraint (structured output).",
           _of_load(lambda load: load.num_so_requests_total)),
    Series("num_aborted_requests", COUNTER, "Answers that were refused or ended early.",
           _of_load(lambda load: load.num_aborted_requests_total)),
    Series("num_retracted_requests", COUNTER,
           "Times that a request lost its KV memory and was queued again.",
           _of_load(lambda load: load.num_retracted_requests_total)),
    Series("prompt_tokens", COUNTER, "Prompt tokens, once per request whose prompt was computed.",
           _of_load(lambda load: load.prompt_tokens_total)),
    Series("cached_tokens", COUNTER,
           "Of those: tokens that came from the prefix cache; by the tier where they were, "
           "`device`, `host` or `storage`.",
           _cached_by_source, "cache_source"),
    Series("generation_tokens", COUNTER, "Tokens of answers.",
           _of_load(lambda load: load.generation_tokens_total)),
    Series("realtime_tokens", COUNTER,
           "Tokens as passes took them, so what is computed again after a retraction counts again: "
           "computed in prefill passes (`prefill_compute`), taken from the cache by admitted "
           "requests (`prefill_cache`), computed in decode passes (`decode`).",
           _tokens_by_mode, "mode"),
    Series("evicted_tokens", COUNTER, "KV tokens that the prefix cache gave up.",
           _of_load(lambda load: load.evicted_tokens_total)),
    Series("load_back_tokens", COUNTER,
           "KV tokens loaded from host memory into the pool; with a host tier only.",
           _of_host(lambda load: load.load_back_tokens_total)),
    Series("backuped_tokens", COUNTER,
           "KV tokens copied from the pool to host memory; with a host tier only.",
           _of_host(lambda load: load.backuped_tokens_total)),
    Series("prefetched_tokens", COUNTER,
           "KV tokens fetched from storage into host memory; with a host tier only.",
           _of_host(lambda load: load.prefetched_tokens_total)),
    Series("num_grammar", COUNTER, "Constraints that the grammar backend was asked for.",
           _of_load(lambda load: load.num_grammar_total)),
    Series("num_grammar_cache_hit", COUNTER, "Of those: constraints that were kept from before.",
           _of_load(lambda load: load.num_grammar_cache_hit_total)),
    Series("num_grammar_timeout", COUNTER, "Compilations that were ended for taking too long.",
           _of_load(lambda load: load.num_grammar_timeout_total)),
    Series("num_grammar_aborted", COUNTER, "Requests that ended while their grammar was compiled.",
           _of_load(lambda load: load.num_grammar_aborted_total)),
)  # fmt: skip
