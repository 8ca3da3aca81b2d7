"""The documented seam for radix-cache backends."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from sglang.srt.extension_points import RADIX_CACHE_BACKENDS
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache, CacheInitParams
from sglang.srt.mem_cache.chunk_cache import ChunkCache
from sglang.srt.mem_cache.hiradix_cache import HiRadixCache
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixCache
from sglang.srt.mem_cache.registry import (
    TreeCacheBuildContext,
    create_tree_cache,
    get_radix_cache_factory,
    register_radix_cache_backend,
    registered_radix_cache_backends,
)
from tests.unit.srt.mem_cache.tiers import Tiers, options


@pytest.fixture(autouse=True)
def no_leftovers() -> Iterator[None]:
    yield
    RADIX_CACHE_BACKENDS.clear()


def context(name: str | None = None, **options: bool) -> TreeCacheBuildContext:
    params = CacheInitParams(
        req_to_token_pool=ReqToTokenPool(2, 8, "cpu"),
        token_to_kv_pool_allocator=TokenToKVPoolAllocator(8, torch.float32, "cpu", None),
    )
    return TreeCacheBuildContext(SimpleNamespace(radix_cache_backend=name), params, **options)


def make(ctx: TreeCacheBuildContext) -> BasePrefixCache:
    return RadixCache(ctx.params)


def test_registered_factory_gets_the_context_and_its_result_is_used() -> None:
    seen = []

    def factory(ctx: TreeCacheBuildContext) -> BasePrefixCache:
        seen.append(ctx)
        return RadixCache(ctx.params)

    register_radix_cache_backend("mine", factory)
    ctx = context("mine")
    assert isinstance(create_tree_cache(ctx), RadixCache)
    assert seen == [ctx]


def test_unregistered_name_tells_the_flag_the_list_and_the_function() -> None:
    register_radix_cache_backend("mine", make)
    with pytest.raises(ValueError) as caught:
        create_tree_cache(context("x"))
    text = str(caught.value)
    assert "--radix-cache-backend='x' is not registered." in text
    assert "['mine']" in text
    assert "register_radix_cache_backend(...)" in text


def test_unknown_factory_is_none() -> None:
    register_radix_cache_backend("mine", make)
    assert get_radix_cache_factory("mine") is make
    assert get_radix_cache_factory("x") is None
    assert registered_radix_cache_backends() == ["mine"]


@pytest.mark.parametrize("name", ["mine", "", " "])
def test_taken_or_blank_name_raises(name: str) -> None:
    register_radix_cache_backend("mine", make)
    with pytest.raises(ValueError):
        register_radix_cache_backend(name, make)


def test_without_a_name_the_default_is_built() -> None:
    assert type(create_tree_cache(context())) is RadixCache
    assert type(create_tree_cache(context(disable_radix_cache=True))) is ChunkCache


def test_hierarchical_cache_is_chosen_when_it_is_enabled() -> None:
    tiers = Tiers()
    ctx = TreeCacheBuildContext(
        options(radix_cache_backend=None),
        CacheInitParams(token_to_kv_pool_allocator=tiers.allocator),
        enable_hierarchical_cache=True,
    )
    cache = create_tree_cache(ctx)
    assert isinstance(cache, HiRadixCache) and cache.host_tier is cache
    ctx.enable_hierarchical_cache = False
    assert type(create_tree_cache(ctx)) is RadixCache


def test_a_pool_that_says_nothing_of_itself_has_no_host_tier() -> None:
    ctx = context(enable_hierarchical_cache=True)
    with pytest.raises(ValueError, match="--enable-hierarchical-cache needs a KV pool"):
        create_tree_cache(ctx)
