"""What the scheduler asks of a prefix cache."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

import torch

from sglang.srt.core.kv_events import KvEvent
from sglang.srt.mem_cache.allocator import BaseTokenToKVPoolAllocator
from sglang.srt.mem_cache.kv_events import KvEventRecorder
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool

if TYPE_CHECKING:
    from sglang.srt.core.request import Req
    from sglang.srt.mem_cache.radix_key import RadixKey


@dataclass
class CacheInitParams:
    """What a cache is built from. Without pools (a simulation) it holds token ids only."""

    disable: bool = False
    req_to_token_pool: ReqToTokenPool | None = None
    token_to_kv_pool_allocator: BaseTokenToKVPoolAllocator | None = None
    page_size: int = 1
    eviction_policy: str = "lru"
    clock: Callable[[], float] = monotonic  # of access times, in seconds
    enable_kv_cache_events: bool = False  # from the start, without `start_kv_events`


@dataclass
class MatchPrefixParams:
    key: "RadixKey"
    req: "Req | None" = None


@dataclass
class MatchResult:
    """The longest cached prefix: its slots, and the node that ends it.

    The node and its ancestors are what `inc_lock_ref` must protect while the slots are in use.
    """

    device_indices: torch.Tensor  # [matched_len] int64
    last_device_node: Any
    # What follows in host memory only, for caches with that tier.
    last_host_node: Any = None
    best_match_node: Any = None  # the end of the match in whatever tier
    host_hit_length: int = 0


@dataclass
class InitLoadBackParams:
    best_match_node: Any
    host_hit_length: int
    mem_quota: int | None = None  # tokens that may be brought; None: what the pool has room for
    req: "Req | None" = None


@dataclass
class InsertParams:
    key: "RadixKey"
    value: torch.Tensor | None = None  # [len(key)] slots; None: the token ids themselves
    chunked: bool = False  # a piece of a prompt: counts as no hit
    priority: int = 0


@dataclass
class InsertResult:
    prefix_len: int  # leading tokens that were cached already; their new slots are duplicates


@dataclass
class EvictParams:
    num_tokens: int


@dataclass
class EvictResult:
    num_tokens_evicted: int = 0


@dataclass
class IncLockRefResult:
    delta: int = 0  # change of the evictable size


@dataclass
class DecLockRefResult:
    delta: int = 0


@dataclass
class CacheCounters:
    """What happened since the start, in tokens; and how long it took, until somebody takes it."""

    num_evicted_tokens: int = 0
    num_loaded_back_tokens: int = 0  # from the host tier to the device
    num_prefetched_tokens: int = 0  # from storage to the host tier
    num_backed_up_tokens: int = 0  # from the device to the host tier
    num_host_used_tokens: int = 0  # now
    num_host_total_tokens: int = 0  # 0: there is no host tier
    eviction_seconds: list[float] = field(default_factory=list)
    load_back_seconds: list[float] = field(default_factory=list)


class HostTier:
    """What a cache with more tiers than the device offers besides; this one has no more.

    Everything is called in the scheduler's thread.
    """

    def init_load_back(self, params: InitLoadBackParams) -> tuple[torch.Tensor, Any]:
        """Brings a matched prefix from the host to the device, as far as room and quota allow.

        The last device node is locked. Returns the slots that were added, which are unlocked, and
        the node that ends them.
        """
        raise AssertionError("without a host tier nothing is found there")

    def begin_prefetch(self, rid: str, key: "RadixKey") -> None:
        """Called when a request begins to wait: storage is asked for what the host has not."""

    def is_prefetching(self, rid: str) -> bool:
        """Whether the request should wait for storage still; what has come is usable."""
        return False

    def end_prefetch(self, rid: str) -> int:
        """The request is admitted or gone. Returns how many tokens storage had for it."""
        return 0

    def wait_for_storage(self) -> None:
        """Called when nothing else is to be done: returns after some news, or soon."""

    def check_integrity(self) -> None:
        """free + cached + on the way == all host pages; else RuntimeError with the numbers."""

    def close(self) -> None:
        """Ends the background threads; what is on its way to storage gets a little time."""


class BasePrefixCache(ABC):
    """Keeps KV of past requests for later ones with the same beginning.

    Every slot has one owner at any time: the allocator (free), the cache (evictable, or protected
    by a lock), or a request (slots of its row from `cache_protected_len` on).
    """

    req_to_token_pool: ReqToTokenPool
    token_to_kv_pool_allocator: BaseTokenToKVPoolAllocator
    page_size: int
    counters: CacheCounters
    kv_events: KvEventRecorder | None = None  # None: off
    host_tier: HostTier = HostTier()

    @abstractmethod
    def reset(self) -> None:
        """Forgets everything without freeing a slot; the caller clears the allocator too."""

    @abstractmethod
    def match_prefix(self, params: "MatchPrefixParams | RadixKey") -> MatchResult:
        """Called at arrival, by policies, and at admission.

        The result holds only whole pages, and is unlocked yet.
        """

    @abstractmethod
    def cache_finished_req(self, req: "Req", is_insert: bool = True) -> None:
        """Called once, when a request leaves the pool for good or is retracted.

        Its KV goes to the cache (`is_insert`) or back to the allocator. Afterwards its lock and its
        row are gone and it owns no slot.
        """

    @abstractmethod
    def cache_unfinished_req(self, req: "Req", chunked: bool = False) -> None:
        """Called after a prefill pass, so that others can already reuse the prompt.

        Afterwards the row addresses the cache's copy of every whole page, the lock covers them, and
        `prefix_indices` and `cache_protected_len` say so.
        """

    @abstractmethod
    def evict(self, params: "EvictParams | int") -> EvictResult:
        """Frees at least that many unlocked tokens if there are so many. 0 does nothing."""

    @abstractmethod
    def inc_lock_ref(self, node: Any) -> IncLockRefResult:
        """Protects the node and its ancestors from eviction. Locks count."""

    @abstractmethod
    def dec_lock_ref(self, node: Any) -> DecLockRefResult:
        """Takes one lock back."""

    def take_kv_copies(self) -> list[Callable[[], None]]:
        """Copies between tiers that have to run, in order, before the next pass writes KV."""
        return []

    def evictable_size(self) -> int:
        """Tokens that `evict` could free now."""
        return 0

    def protected_size(self) -> int:
        """Tokens that the cache holds under a lock."""
        return 0

    def total_size(self) -> int:
        return self.evictable_size() + self.protected_size()

    def start_kv_events(self) -> None:
        """From now on `take_events` tells what changes; the first ones tell what is there.

        Without effect when events are on, or where a cache tells none.
        """
        return None

    def take_events(self) -> list[KvEvent]:
        """What was stored and dropped since the last call, once per page. Empty while off."""
        return [] if self.kv_events is None else self.kv_events.take()

    def pretty_print(self) -> None:
        """Prints the content, for people."""
        print(f"#tokens: {self.total_size()}")

    def is_chunk_cache(self) -> bool:
        return False

    def is_tree_cache(self) -> bool:
        return not self.is_chunk_cache()

    def available_and_evictable_str(self) -> str:
        free, evictable = self.token_to_kv_pool_allocator.available_size(), self.evictable_size()
        return f"available tokens: {free}, evictable tokens: {evictable}"
