"""Which prefix cache the engine builds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from sglang.extension.registry import source_of
from sglang.srt.extension_points import RADIX_CACHE_BACKENDS
from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache, CacheInitParams
from sglang.srt.mem_cache.chunk_cache import ChunkCache
from sglang.srt.mem_cache.radix_cache import RadixCache


class CacheArgs(Protocol):
    """The server option that this module reads."""

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
    """The radix tree, or no sharing at all with `--disable-radix-cache`."""
    return ChunkCache(ctx.params) if ctx.disable_radix_cache else RadixCache(ctx.params)


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
