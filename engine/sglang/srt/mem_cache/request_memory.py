"""Moves KV slots between the allocator, the prefix cache and the requests; nobody else does."""

import time
from collections.abc import Callable, Iterable

import torch

from sglang.srt.core.request import Req
from sglang.srt.mem_cache.allocator import BaseTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import (
    BasePrefixCache,
    EvictParams,
    HostTier,
    InitLoadBackParams,
    MatchPrefixParams,
    MatchResult,
)
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_key import RadixKey


class RequestMemory:
    """The pool as the scheduler sees it. Questions first (`room`, `can_…`), then commands.

    A request's memory has three states: none; a locked prefix (`attach_prefix`); a row with slots
    (`extend`, then `decode`), until `release`.
    """

    def __init__(
        self,
        tree_cache: BasePrefixCache,
        req_to_token_pool: ReqToTokenPool,
        allocator: BaseTokenToKVPoolAllocator,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`clock` measures evictions, in seconds."""
        self._clock = clock
        self.tree_cache = tree_cache
        self.host_tier = tree_cache.host_tier
        self.req_to_token_pool = req_to_token_pool
        self.allocator = allocator
        self.page_size = allocator.page_size
        self.size = allocator.size
        self.shares_prefixes = not tree_cache.is_chunk_cache()

    # ---------------------------------------------------------------- questions

    def room(self) -> int:
        """Tokens that are free, or would be after eviction."""
        return self.allocator.full_available_size() + self.tree_cache.evictable_size()

    def room_now(self, reqs: list[Req]) -> int:
        """How many tokens a pass of these requests can allocate: less than `room` where a second
        pool is full, which running requests keep emptying.
        """
        return self.allocator.available_after_trim(reqs) + self.tree_cache.evictable_size()

    def used(self) -> int:
        """Tokens that eviction could not free."""
        return self.size - self.room()

    def rows_left(self) -> int:
        return self.req_to_token_pool.available_size()

    def new_page_tokens(self, old_len: int, new_len: int) -> int:
        """Tokens of the pages that a request needs to grow from one length to the other."""
        pages = self.allocator.num_pages_of(new_len) - self.allocator.num_pages_of(old_len)
        return pages * self.page_size

    def decode_tokens(self, reqs: Iterable[Req]) -> int:
        """Tokens of the pages that one more token of each request needs."""
        size = self.page_size
        return size * sum(req.kv_committed_len % size == 0 for req in reqs)

    def is_prefetching(self, req: Req) -> bool:
        """Whether the request should wait still for what storage has of it."""
        return self.host_tier.is_prefetching(req.rid)

    # ---------------------------------------------------------------- commands

    def take_kv_copies(self) -> list[Callable[[], None]]:
        """Copies between tiers, in the order in which they must run before the next pass."""
        return self.tree_cache.take_kv_copies()

    def look_up(self, req: Req) -> None:
        """Called when the request begins to wait: sets `found_len`, and locks nothing."""
        if self.shares_prefixes:
            find_prefix(req, self.tree_cache)
            self.host_tier.begin_prefetch(req.rid, key_of(req))

    def attach_prefix(self, req: Req, quota: int | None = None) -> None:
        """Finds and locks what is cached of the request; at least one token is left to compute.

        What the host tier has is brought to the device, up to `quota` tokens.
        """
        match = find_prefix(req, self.tree_cache)
        slots, node = match.device_indices, match.last_device_node
        self.tree_cache.inc_lock_ref(node)
        if match.host_hit_length:
            more, end = self.host_tier.init_load_back(
                InitLoadBackParams(match.best_match_node, match.host_hit_length, quota, req)
            )
            self.tree_cache.inc_lock_ref(end)
            self.tree_cache.dec_lock_ref(node)
            slots, node = torch.cat([slots, more]), end
            req.loaded_len += len(more)
        req.prefix_indices, req.last_node = slots, node
        req.kv_committed_len = req.cache_protected_len = len(slots)

    def detach_prefix(self, req: Req) -> None:
        """Undoes `attach_prefix`."""
        self.tree_cache.dec_lock_ref(req.last_node)
        req.prefix_indices, req.last_node = None, None
        req.kv_committed_len = req.cache_protected_len = 0

    def extend(self, reqs: list[Req], new_lens: list[int]) -> torch.Tensor:
        """Slots for the next `new_len` tokens of each request, whose prefixes are attached.

        Returns out_cache_loc: [sum(new_lens)] int64. The rows say where every token lies.
        """
        olds = [req.kv_committed_len for req in reqs]
        ends = [old + new for old, new in zip(olds, new_lens, strict=True)]
        self.allocator.trim(reqs, self.req_to_token_pool)
        self._evict_for(sum(map(self.new_page_tokens, olds, ends)))
        is_new = [req.req_pool_idx is None for req in reqs]
        rows = self.req_to_token_pool.alloc(reqs)
        last_loc = [last_slot(req, self.req_to_token_pool, self.page_size) for req in reqs]
        slots = self.allocator.alloc_extend(olds, ends, last_loc)
        assert rows is not None and slots is not None, "the planner looked for room before"
        parts = torch.split(slots, new_lens)
        for req, old, end, part, new in zip(reqs, olds, ends, parts, is_new, strict=True):
            if new and req.prefix_indices is not None:
                self.req_to_token_pool.write((req.req_pool_idx, slice(0, old)), req.prefix_indices)
            if new:
                note_origin(req, self.host_tier)
            self.req_to_token_pool.write((req.req_pool_idx, slice(old, end)), part)
            req.kv_committed_len = end
        return slots

    def can_decode(self, reqs: list[Req]) -> bool:
        return self.decode_tokens(reqs) <= self.room_now(reqs)

    def decode(self, reqs: list[Req]) -> torch.Tensor:
        """One slot for the next token of each request. Returns out_cache_loc: [batch_size]."""
        self.allocator.trim(reqs, self.req_to_token_pool)
        self._evict_for(self.decode_tokens(reqs))
        table = self.req_to_token_pool.req_to_token
        rows = torch.tensor([req.req_pool_idx for req in reqs], device=table.device)
        lens = torch.tensor([req.kv_committed_len for req in reqs], device=table.device)
        slots = self.allocator.alloc_decode(
            [req.kv_committed_len + 1 for req in reqs], table[rows, lens - 1]
        )
        assert slots is not None, "the scheduler looked for room before"
        self.req_to_token_pool.write((rows, lens), slots)
        for req in reqs:
            req.kv_committed_len += 1
        return slots

    def share_prompt(self, req: Req, chunked: bool = False) -> None:
        """After a prefill pass: others may reuse what the request has computed."""
        self.tree_cache.cache_unfinished_req(req, chunked=chunked)

    def release(self, req: Req, keep: bool = True) -> None:
        """The request gives all back; `keep` leaves its KV in the cache for others."""
        self.tree_cache.cache_finished_req(req, is_insert=keep)
        req.window_start = 0

    def clear(self) -> None:
        """Forgets every cached prefix. Only while no request holds memory."""
        self.tree_cache.reset()
        self.allocator.clear()

    # ---------------------------------------------------------------- check

    def check_integrity(self, holders: Iterable[Req]) -> None:
        """free + evictable + protected + held == all pages; else RuntimeError with the numbers."""
        holders = list(holders)
        held = sum(
            self.new_page_tokens(req.cache_protected_len, req.kv_committed_len) for req in holders
        )
        free = self.allocator.full_available_size()
        evictable = self.tree_cache.evictable_size()
        protected = self.tree_cache.protected_size()
        self.allocator.merge_and_sort_free()
        if free + evictable + protected + held != self.size:
            raise RuntimeError(
                f"KV pool of {self.size} tokens does not add up: {free} free + {evictable} "
                f"evictable + {protected} protected + {held} held by {len(holders)} requests = "
                f"{free + evictable + protected + held}"
            )
        if not holders and protected:
            raise RuntimeError(f"{protected} cached tokens are locked though no request runs")
        rows = self.req_to_token_pool.size - self.rows_left()
        if rows != len(holders):
            raise RuntimeError(f"{rows} rows are taken by {len(holders)} requests")
        self.allocator.check_window(holders)
        self.host_tier.check_integrity()

    def _evict_for(self, num_tokens: int) -> None:
        missing = num_tokens - self.allocator.available_size()
        if missing > 0:
            start = self._clock()
            self.tree_cache.evict(EvictParams(missing))
            self.tree_cache.counters.eviction_seconds.append(self._clock() - start)


def last_slot(req: Req, table: ReqToTokenPool, page_size: int) -> int:
    """Where the request's last token lies; -1 where a new page follows."""
    if req.kv_committed_len % page_size == 0:
        return -1
    return int(table.req_to_token[req.req_pool_idx, req.kv_committed_len - 1])


def note_origin(req: Req, host_tier: HostTier) -> None:
    """Called at admission: ends the request's prefetch; the first time, says from which tier its
    cached tokens came.
    """
    num_prefetched = host_tier.end_prefetch(req.rid)
    if req.cached_tokens_details is None:
        loaded = min(req.loaded_len, req.kv_committed_len)
        storage = min(num_prefetched, loaded)
        req.cached_tokens_details = {
            "device": req.kv_committed_len - loaded,
            "host": loaded - storage,
            "storage": storage,
        }


def wants_prompt_logprobs(req: Req) -> bool:
    """A retracted request has reported its prompt already."""
    prompt_len = len(req.origin_input_ids)
    return req.return_logprob and 0 <= req.logprob_start_len < prompt_len and not req.output_ids


def find_prefix(req: Req, tree_cache: BasePrefixCache) -> MatchResult:
    """What is cached of the request now; `found_len` keeps how much."""
    match = tree_cache.match_prefix(MatchPrefixParams(key_of(req), req))
    req.found_len = len(match.device_indices) + match.host_hit_length
    return match


def key_of(req: Req) -> RadixKey:
    """The tokens that may come from the cache. Made once per length: the ids only ever grow."""
    length = reusable_len(req)
    key: RadixKey | None = req.prefix_key
    if key is None or len(key) != length:
        key = req.prefix_key = RadixKey(req.fill_ids[:length], req.extra_key, req.adapter)
    return key


def reusable_len(req: Req) -> int:
    """Tokens that may come from the cache: the rest has to be computed for its logits."""
    limit = req.seq_len - 1
    return min(limit, req.logprob_start_len) if wants_prompt_logprobs(req) else limit
