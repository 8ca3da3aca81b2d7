"""The prefix cache that shares nothing; `--disable-radix-cache` uses it."""

from typing import Any

import torch

from sglang.srt.core.request import Req
from sglang.srt.mem_cache.base_prefix_cache import (
    BasePrefixCache,
    CacheCounters,
    CacheInitParams,
    DecLockRefResult,
    EvictParams,
    EvictResult,
    IncLockRefResult,
    MatchPrefixParams,
    MatchResult,
)
from sglang.srt.mem_cache.radix_key import RadixKey


class ChunkCache(BasePrefixCache):
    """A request keeps its KV from chunk to chunk, and frees it when it ends."""

    def __init__(self, params: CacheInitParams) -> None:
        assert params.req_to_token_pool is not None
        assert params.token_to_kv_pool_allocator is not None
        self.req_to_token_pool = params.req_to_token_pool
        self.token_to_kv_pool_allocator = params.token_to_kv_pool_allocator
        self.page_size = params.page_size
        self.counters = CacheCounters()

    def reset(self) -> None:
        """There is nothing to forget."""

    def match_prefix(self, params: MatchPrefixParams | RadixKey) -> MatchResult:
        device = self.token_to_kv_pool_allocator.device
        return MatchResult(torch.empty(0, dtype=torch.int64, device=device), None)

    def cache_finished_req(self, req: Req, is_insert: bool = True) -> None:
        slots = self.req_to_token_pool.slots(req, 0, req.kv_committed_len)
        self.token_to_kv_pool_allocator.free(slots)
        self.req_to_token_pool.free(req)
        req.prefix_indices = None
        req.kv_committed_len = req.kv_pending_len = 0

    def cache_unfinished_req(self, req: Req, chunked: bool = False) -> None:
        req.prefix_indices = self.req_to_token_pool.slots(req, 0, req.kv_committed_len)

    def evict(self, params: EvictParams | int) -> EvictResult:
        return EvictResult()

    def inc_lock_ref(self, node: Any) -> IncLockRefResult:
        return IncLockRefResult()

    def dec_lock_ref(self, node: Any) -> DecLockRefResult:
        return DecLockRefResult()

    def is_chunk_cache(self) -> bool:
        return True
