"""Slices of the server's configuration, one frozen dataclass per part of the engine."""

from dataclasses import dataclass

from sglang.srt.environ import envs
from sglang.srt.server_args import PortArgs, ServerArgs

__all__ = [
    "CacheConfig",
    "PortArgs",
    "PriorityConfig",
    "ScheduleConfig",
    "cache_config",
    "schedule_config",
]


@dataclass(frozen=True)
class PriorityConfig:
    """What the priorities of requests decide."""

    enabled: bool = False
    low_values_first: bool = False
    default: int = 0  # of a request without one
    preempts: bool = True  # waiting requests push out running ones that are less urgent
    preemption_threshold: int = 10  # by more than so much
    refused_when_disabled: bool = False


@dataclass(frozen=True)
class ScheduleConfig:
    """How requests are admitted, batched and reported. Counts are in tokens unless named else."""

    max_running_requests: int  # resolved: at least 1
    schedule_policy: str = "fcfs"
    max_queued_requests: int | None = None  # None: no limit
    chunked_prefill_size: int | None = None  # resolved multiple of the page size; None: off
    max_prefill_tokens: int = 16384
    schedule_conservativeness: float = 1.0
    stream_interval: int = 1  # tokens between two outputs of a streamed answer
    overlap: bool = False  # plan the next step while one computes
    mixed_chunk: bool = False  # running answers grow in the passes that compute prompts
    retraction_policy: str = "length"  # length | priority
    waiting_timeout: float | None = None  # seconds a request may wait for its first pass
    priority: PriorityConfig = PriorityConfig()
    watchdog_timeout: float = 300.0  # seconds a step may take before the process ends itself
    decode_log_interval: int = 0  # decode steps between two lines in the log; 0: none
    lora_drain_after: float = 0.0  # seconds a request waits for its adapter's place; 0: any time

    def __post_init__(self) -> None:
        assert self.max_running_requests >= 1
        assert self.chunked_prefill_size is None or self.chunked_prefill_size >= 1
        assert self.max_prefill_tokens >= 1
        assert self.stream_interval >= 1


@dataclass(frozen=True)
class CacheConfig:
    """What the KV pool looks like, and which tree shares it."""

    context_len: int  # longest prompt plus answer, in tokens
    max_total_tokens: int  # size of the KV pool in tokens; rounded down to whole pages
    page_size: int = 1
    disable_radix_cache: bool = False
    radix_cache_backend: str | None = None  # a registered name; None: the built-in tree
    radix_eviction_policy: str = "lru"

    def __post_init__(self) -> None:
        assert self.context_len >= 1
        assert self.page_size >= 1
        assert self.max_total_tokens >= self.page_size


def _priority_config(args: ServerArgs) -> PriorityConfig:
    return PriorityConfig(
        enabled=args.enable_priority_scheduling,
        low_values_first=args.schedule_low_priority_values_first,
        default=args.default_priority_value or 0,
        preempts=not args.disable_priority_preemption,
        preemption_threshold=args.priority_scheduling_preemption_threshold,
        refused_when_disabled=args.abort_on_priority_when_disabled,
    )


def schedule_config(args: ServerArgs, max_running_requests: int) -> ScheduleConfig:
    """`max_running_requests` is resolved by whoever knows the pool."""
    chunk = args.chunked_prefill_size
    return ScheduleConfig(
        max_running_requests=max_running_requests,
        schedule_policy=args.schedule_policy,
        max_queued_requests=args.max_queued_requests,
        chunked_prefill_size=chunk if chunk is not None and chunk > 0 else None,
        max_prefill_tokens=args.max_prefill_tokens,
        schedule_conservativeness=args.schedule_conservativeness,
        stream_interval=args.stream_interval,
        overlap=not args.disable_overlap_schedule,
        mixed_chunk=args.enable_mixed_chunk,
        retraction_policy=args.retraction_policy,
        waiting_timeout=envs.SGLANG_REQ_WAITING_TIMEOUT.get(),
        priority=_priority_config(args),
        watchdog_timeout=args.watchdog_timeout,
        decode_log_interval=args.decode_log_interval,
        lora_drain_after=args.lora_drain_wait_threshold,
    )


def cache_config(args: ServerArgs, context_len: int, max_total_tokens: int) -> CacheConfig:
    """Lengths as the loaded model and its memory allow them."""
    return CacheConfig(
        context_len=context_len,
        max_total_tokens=max_total_tokens,
        page_size=args.page_size,
        disable_radix_cache=args.disable_radix_cache,
        radix_cache_backend=args.radix_cache_backend,
        radix_eviction_policy=args.radix_eviction_policy,
    )
