"""Every registry of the runtime, with its built-in names as lazy strings."""

from collections.abc import Callable
from typing import Any

from sglang.extension.registry import Registry

# factory(model_runner) -> attention backend
ATTENTION_BACKENDS: Registry[Callable[..., Any]] = Registry("attention backend")
ATTENTION_BACKENDS.register_lazy(
    "torch_native", "sglang.srt.layers.attention.torch_native:create_torch_native_backend"
)
ATTENTION_BACKENDS.register_lazy(
    "torch_invariant",
    "sglang.srt.layers.attention.torch_invariant:create_torch_invariant_backend",
)
ATTENTION_BACKENDS.register_lazy(
    "triton", "sglang.srt.layers.attention.triton_backend:create_triton_backend"
)
ATTENTION_BACKENDS.register_lazy(
    "flashinfer", "sglang.srt.layers.attention.flashinfer_backend:create_flashinfer_backend"
)

# factory(ctx: TreeCacheBuildContext) -> BasePrefixCache
RADIX_CACHE_BACKENDS: Registry[Callable[..., Any]] = Registry("radix cache backend")

# factory() -> EvictionStrategy
EVICTION_POLICIES: Registry[Callable[..., Any]] = Registry("eviction policy")
for _name in ("LRU", "LFU", "FIFO", "MRU", "FILO", "Priority", "SLRU"):
    EVICTION_POLICIES.register_lazy(
        _name.lower(), f"sglang.srt.mem_cache.evict_policy:{_name}Strategy"
    )

# factory() -> sglang.srt.lora.eviction_policy.EvictionPolicy
LORA_EVICTION_POLICIES: Registry[Callable[..., Any]] = Registry("adapter eviction policy")
for _name in ("LRU", "FIFO", "LFU"):
    LORA_EVICTION_POLICIES.register_lazy(
        _name.lower(), f"sglang.srt.lora.eviction_policy:{_name}EvictionPolicy"
    )

# factory(server_args, tokenizer, vocab_size, eos_token_ids) -> BaseGrammarBackend | None
GRAMMAR_BACKENDS: Registry[Callable[..., Any]] = Registry("grammar backend")
GRAMMAR_BACKENDS.register_lazy("none", "sglang.srt.constrained.base_grammar_backend:no_backend")
GRAMMAR_BACKENDS.register_lazy(
    "xgrammar", "sglang.srt.constrained.xgrammar_backend:create_xgrammar_backend"
)
GRAMMAR_BACKENDS.register_lazy(
    "llguidance", "sglang.srt.constrained.llguidance_backend:create_guidance_backend"
)

# class or factory() -> CustomLogitProcessor; requests may use these by name
LOGIT_PROCESSORS: Registry[Callable[..., Any]] = Registry("custom logit processor")
for _name, _class in (
    ("disallowed_tokens", "DisallowedTokensLogitsProcessor"),
    ("thinking_budget", "ThinkingBudgetLogitProcessor"),
):
    LOGIT_PROCESSORS.register_lazy(_name, f"sglang.srt.sampling.custom_logit_processor:{_class}")

# factory(context: SamplerContext) -> sampler
SAMPLER_BACKENDS: Registry[Callable[..., Any]] = Registry("sampling backend")
SAMPLER_BACKENDS.register_lazy("pytorch", "sglang.srt.sampling.sampler:create_pytorch_sampler")

# publisher(config: KvEventsConfig, dp_rank, log: KvEventLog) -> EventPublisher
EVENT_PUBLISHERS: Registry[Callable[..., Any]] = Registry("event publisher")
EVENT_PUBLISHERS.register_lazy("null", "sglang.srt.entrypoints.event_publisher:NullPublisher")
EVENT_PUBLISHERS.register_lazy("zmq", "sglang.srt.entrypoints.event_publisher:ZmqEventPublisher")

# order(waiting: list[Req], tree_cache, running: list[Req]) sorts `waiting` in place, next one first
SCHEDULE_POLICIES: Registry[Callable[..., Any]] = Registry("schedule policy")
SCHEDULE_POLICIES.register_lazy("fcfs", "sglang.srt.managers.schedule_policy:arrival_order")
SCHEDULE_POLICIES.register_lazy("lpm", "sglang.srt.managers.schedule_policy:longest_prefix_first")
SCHEDULE_POLICIES.register_lazy("dfs-weight", "sglang.srt.managers.schedule_policy:busiest_branch")
SCHEDULE_POLICIES.register_lazy("lof", "sglang.srt.managers.schedule_policy:longest_output_first")
SCHEDULE_POLICIES.register_lazy("random", "sglang.srt.managers.schedule_policy:random_order")
SCHEDULE_POLICIES.register_lazy("priority", "sglang.srt.managers.schedule_policy:arrival_order")
SCHEDULE_POLICIES.register_lazy(
    "routing-key", "sglang.srt.managers.schedule_policy:running_keys_first"
)

# factory(storage_config, extra_config) -> HiCacheStorage
HICACHE_STORAGE_BACKENDS: Registry[Callable[..., Any]] = Registry("storage backend")
HICACHE_STORAGE_BACKENDS.register_lazy("file", "sglang.srt.mem_cache.hicache_storage:HiCacheFile")
HICACHE_STORAGE_BACKENDS.register_lazy(
    "dynamic", "sglang.srt.mem_cache.storage_factory:make_dynamic_storage"
)

# CustomSpecAlgo by name in upper case; the built-in names are members of SpeculativeAlgorithm
SPECULATIVE_ALGORITHMS: Registry[Any] = Registry("speculative algorithm")
# Named here because options are checked below the layer that knows the algorithms.
SPECULATIVE_NAMES = "sglang.srt.speculative.spec_info"
