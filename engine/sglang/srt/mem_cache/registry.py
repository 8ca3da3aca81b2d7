"""Which prefix cache the engine builds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from sglang.extension.registry import source_of
from sglang.srt.extension_points import RADIX_CACHE_BACKENDS
from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache, CacheInitParams
from sglang.srt.mem_cache.chunk_cache import ChunkCache
from sglang.srt.mem_cache.hiradix_cache import HiCacheArgs, HiRadixCache
from sglang.srt.mem_cache.radix_cache import RadixCache


class CacheArgs(HiCacheArgs, Protocol):
    """The server options that this module reads, or hands on."""

    @property
    def radix_cache_backend(self) -> str | None: ...


@dataclass
class TreeCacheBuildContext:
    """All that a factory may look at."""

    server_args: CacheArgs
    params: CacheInitParams
    disable_radix_cache: bool = False
    effective_chunked_prefill_size: int | None = None
    tp_worker: Any = None
    tp_size: int = 1
    tp_rank: int = 0
    tp_group: Any = None
    enable_hierarchical_cache: bool = False
    is_hybrid_swa: bool = False
    is_hybrid_ssm: bool = False
    is_dsa: bool = False
    full_tokens_per_layer: int | None = None
    model_config: Any = None
    weights_fingerprint: str = ""  # equal texts: equal KV of equal tokens
    host_memory_bytes: int | None = None  # that a host tier may take; None: not known


TreeCacheFactory = Callable[[TreeCacheBuildContext], BasePrefixCache]
_RADIX_CACHE_REGISTRY = RADIX_CACHE_BACKENDS


def register_radix_cache_backend(name: str, factory: TreeCacheFactory) -> None:
    """Makes a factory available as `--radix-cache-backend NAME`. A blank or taken name raises."""
    _RADIX_CACHE_REGISTRY.register(name, factory, source=source_of(factory))


def get_radix_cache_factory(name: str) -> TreeCacheFactory | None:
    """The factory, or None if nobody registered the name."""
    factory: TreeCacheFactory | None = _RADIX_CACHE_REGISTRY.get(name, None)
    return factory


def registered_radix_cache_backends() -> list[str]:
    return _RADIX_CACHE_REGISTRY.names()


def default_radix_cache_factory(ctx: TreeCacheBuildContext) -> BasePrefixCache:
    """The radix tree, with a host tier if it is enabled; or no sharing at all with
    `--disable-radix-cache`.
    """
    if ctx.disable_radix_cache:
        return ChunkCache(ctx.params)
    if not ctx.enable_hierarchical_cache:
        return RadixCache(ctx.params)
    return HiRadixCache(
        ctx.params,
        ctx.server_args,
        fingerprint=ctx.weights_fingerprint,
        host_memory_bytes=ctx.host_memory_bytes,
    )


def create_tree_cache(ctx: TreeCacheBuildContext) -> BasePrefixCache:
    """The cache that `--radix-cache-backend` names, else the default one."""
    name = ctx.server_args.radix_cache_backend
    if not name:
        return default_radix_cache_factory(ctx)
    factory = get_radix_cache_factory(name)
    if factory is None:
        raise ValueError(
            f"--radix-cache-backend={name!r} is not registered. "
            f"Registered backends: {registered_radix_cache_backends()}. "
            "An external backend must call register_radix_cache_backend(...) when it is imported."
        )
    return factory(ctx)
