"""The prefix cache of three tiers: device, host memory, storage."""

import logging
from collections.abc import Callable
from typing import Any, Protocol

import torch

from sglang.srt.arg_groups.hicache import (
    DEFAULT_RATIO,
    PAGE_FIRST,
    WRITE_POLICIES,
    read_extra_config,
)
from sglang.srt.mem_cache.base_prefix_cache import CacheInitParams, HostTier, InitLoadBackParams
from sglang.srt.mem_cache.hicache_controller import (
    STOP_SECONDS,
    HiCacheController,
    Prefetch,
    PrefetchRules,
)
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, HiCacheStorageConfig
from sglang.srt.mem_cache.host_tree import HostTreeCache
from sglang.srt.mem_cache.kv_copies import Done
from sglang.srt.mem_cache.kv_events import hash_node
from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool
from sglang.srt.mem_cache.memory_pool_host import (
    GB,
    HOST_POOLS,
    HostKVPool,
    device_rows,
    host_pool_tokens,
)
from sglang.srt.mem_cache.prefetches import Prefetches
from sglang.srt.mem_cache.radix_key import RadixKey, TreeNode
from sglang.srt.mem_cache.storage_factory import StorageBackendFactory

logger = logging.getLogger(__name__)

# Of the host's pages, the share that may wait to be written to storage; pages that wait stay.
MAX_PENDING_SHARE = 0.5
# Of available memory, what the host tier takes when its default size does not fit.
DEFAULT_SHARE = 0.5
CLOSE_SECONDS = 5.0  # for what waits to be written when the engine ends
Answer = tuple[bool, str]


class HiCacheArgs(Protocol):
    """The server options that this module reads."""

    @property
    def hicache_ratio(self) -> float | None: ...
    @property
    def hicache_size(self) -> int: ...
    @property
    def hicache_write_policy(self) -> str: ...
    @property
    def hicache_mem_layout(self) -> str: ...
    @property
    def hicache_storage_backend(self) -> str | None: ...
    @property
    def hicache_storage_prefetch_policy(self) -> str: ...
    @property
    def hicache_storage_backend_extra_config(self) -> str | None: ...
    @property
    def served_model_name(self) -> str | None: ...


class HiRadixCache(HostTreeCache, HostTier):
    """A radix tree with a host tier, and storage that may be attached below it at run time."""

    def __init__(
        self,
        params: CacheInitParams,
        server_args: HiCacheArgs,
        *,
        fingerprint: str = "",
        host_memory_bytes: int | None = None,
        make_controller: Callable[..., HiCacheController] = HiCacheController,
    ) -> None:
        """fingerprint: of the weights, so that storage gives nobody the KV of others.
        host_memory_bytes: what the host tier may take; None: not known.
        """
        pool = build_host_pool(params, server_args, host_memory_bytes)
        self.controller: HiCacheController | None = None
        self._backend_name: str | None = None
        self._model_name, self._fingerprint = server_args.served_model_name, fingerprint
        self._make_controller = make_controller
        self._prefetches = Prefetches(self, params.clock)
        super().__init__(params, pool, server_args.hicache_write_policy)
        self.host_tier = self
        if server_args.hicache_storage_backend is not None:
            self._attach(
                server_args.hicache_storage_backend,
                read_extra_config(server_args.hicache_storage_backend_extra_config),
                server_args.hicache_storage_prefetch_policy,
            )

    def reset(self) -> None:
        self._prefetches.stop_all()
        super().reset()

    # ---------------------------------------------------------------- copies

    def take_kv_copies(self) -> list[Callable[[], None]]:
        self.check_hicache_events()
        return self.copies.take()

    def check_hicache_events(self) -> None:
        """Takes note of what other threads have finished."""
        self.counters.load_back_seconds.extend(self.copies.settle())
        self._prefetches.settle()
        self.counters.num_host_used_tokens = self.host_pool.size - self.host_pool.available_size()

    def init_load_back(self, params: InitLoadBackParams) -> tuple[torch.Tensor, TreeNode]:
        node: TreeNode = params.best_match_node
        slots = self.load_back(node, params.mem_quota) if params.host_hit_length else None
        while node.evicted:
            assert node.parent is not None, "the root is on the device"
            node = node.parent
        if slots is None:
            slots = torch.empty(0, dtype=torch.int64, device=self.device)
        return slots, node

    def _storing(self, node: TreeNode) -> Callable[[Done], None] | None:
        controller = self.controller
        if controller is None:
            return None
        keys, slots = hash_node(node, self.page_size), node.host_value
        assert slots is not None and len(keys) * self.page_size == len(slots)
        return lambda done: controller.write(keys, slots, done)

    # ---------------------------------------------------------------- prefetch

    def begin_prefetch(self, rid: str, key: RadixKey) -> None:
        if self.controller is None:
            return
        match = self.match_prefix(key)
        known = len(match.device_indices) + match.host_hit_length
        self.prefetch_from_storage(rid, match.best_match_node, key[known:])

    def prefetch_from_storage(
        self,
        req_id: str,
        node: TreeNode,
        tokens: RadixKey,
        last_hash: str | None = None,
        prefix_keys: list[str] | None = None,
    ) -> None:
        """Asks storage for the tokens that follow the node; `last_hash` is the node's last page's
        if the caller knows it.
        """
        if self.controller is not None:
            self._prefetches.begin(self.controller, req_id, node, tokens, last_hash, prefix_keys)

    def check_prefetch_progress(self, rid: str) -> bool:
        """Whether the request may be scheduled; what has come is in the tree by then."""
        return self._prefetches.may_go(rid)

    def can_terminate_prefetch(self, op: Prefetch) -> bool:
        """Whether the policy lets a request go without the rest. Plugins may ask: it is a
        documented method of this class, which nothing here calls.
        """
        return self._prefetches.may_stop(op)

    def is_prefetching(self, rid: str) -> bool:
        return not self.check_prefetch_progress(rid)

    def end_prefetch(self, rid: str) -> int:
        return self._prefetches.end(rid)

    def wait_for_storage(self) -> None:
        self._prefetches.wait()

    # ---------------------------------------------------------------- storage

    def attach_storage_backend(
        self,
        storage_backend: str,
        storage_backend_extra_config_json: str | None = None,
        hicache_storage_prefetch_policy: str | None = None,
        hicache_write_policy: str | None = None,
    ) -> Answer:
        """What comes to the host from now on is stored; what is there already is not."""
        if self.controller is not None:
            return (
                False,
                f"The storage backend {self._backend_name!r} is attached; detach it first.",
            )
        policy = hicache_write_policy or self.write_policy
        if policy not in WRITE_POLICIES:
            allowed = ", ".join(WRITE_POLICIES)
            return False, f"hicache_write_policy must be one of {allowed}; got {policy!r}"
        try:
            extra_config = read_extra_config(storage_backend_extra_config_json)
            prefetch_policy = hicache_storage_prefetch_policy or self._prefetches.rules.policy
            self._attach(storage_backend, extra_config, prefetch_policy)
        except ValueError as error:
            return False, str(error)
        self.write_policy = policy
        return True, f"The storage backend {storage_backend!r} is attached."

    def _attach(self, name: str, extra_config: dict[str, Any], prefetch_policy: str) -> None:
        rules = PrefetchRules.of(prefetch_policy, extra_config)
        config = HiCacheStorageConfig(
            is_mla_model=isinstance(
                self.token_to_kv_pool_allocator.get_kvcache(), MLATokenToKVPool
            ),
            is_page_first_layout=self.host_pool.layout == PAGE_FIRST,
            model_name=self._model_name,
            extra_config=extra_config,
            fingerprint=self._fingerprint,
        )
        storage = StorageBackendFactory.create_backend(name, config, self.host_pool)
        num_pages = self.host_pool.size // self.page_size
        self.controller = self._make_controller(
            storage, self.page_size, max(int(num_pages * MAX_PENDING_SHARE), 1)
        )
        self._backend_name, self._prefetches.rules = name, rules

    def detach_storage_backend(self) -> Answer:
        """Requests that wait for storage wait no longer; what waits to be written is written."""
        controller, name = self.controller, self._backend_name
        if controller is None:
            return False, "No storage backend is attached."
        self._prefetches.stop_all()
        self.controller = self._backend_name = None
        if not controller.close():
            return False, (
                f"The storage backend {name!r} is detached, but has not come back for "
                f"{STOP_SECONDS:g} s from its last call; host memory of that call stays taken "
                "until it does."
            )
        return True, f"The storage backend {name!r} is detached."

    def clear_storage_backend(self) -> bool:
        """Forgets what is stored. False if there is no backend, or it cannot."""
        if self.controller is None:
            return False
        try:
            return self.controller.storage.clear()
        except Exception:
            logger.exception("the storage backend %r cannot be cleared", self._backend_name)
            return False

    def storage_status(self) -> dict[str, Any]:
        """What is attached and how it does, for people and programs."""
        controller, rules = self.controller, self._prefetches.rules
        status: dict[str, Any] = {
            "hicache_storage_backend": self._backend_name,
            "hicache_storage_prefetch_policy": rules.policy,
            "hicache_write_policy": self.write_policy,
            "host_used_tokens": self.host_pool.size - self.host_pool.available_size(),
            "host_total_tokens": self.host_pool.size,
        }
        if controller is not None:
            status |= {
                "prefetch_threshold": rules.threshold,
                "num_stored_pages": controller.counts.num_stored,
                "num_not_stored_pages": controller.counts.num_not_stored,
                "num_pending_pages": controller.num_pending_pages,
                "storage": stats_of(controller.storage),
            }
        return status

    # ---------------------------------------------------------------- check, end

    def check_integrity(self) -> None:
        self.check_hicache_events()
        pool = self.host_pool
        free, cached = pool.available_size(), self.num_host_tokens
        coming, dropped = self._prefetches.num_tokens_held(), pool.num_dropped_tokens()
        if free + cached + coming + dropped != pool.size:
            raise RuntimeError(
                f"Host tier of {pool.size} tokens does not add up: {free} free + {cached} cached + "
                f"{coming} on the way from storage + {dropped} in copies = "
                f"{free + cached + coming + dropped}"
            )

    def close(self) -> None:
        if self.controller is not None and not self.controller.close(CLOSE_SECONDS):
            logger.warning("the storage backend %r is stuck at the end", self._backend_name)
        self.controller = None


def stats_of(storage: HiCacheStorage) -> dict[str, Any]:
    """The backend's own numbers, or why there are none."""
    try:
        return storage.get_stats()
    except Exception as error:
        logger.exception("a storage backend has no numbers")
        return {"error": f"{type(error).__name__}: {error}"}


def build_host_pool(
    params: CacheInitParams, args: HiCacheArgs, host_memory_bytes: int | None
) -> HostKVPool:
    """Host memory for KV as the options ask. If the machine has less, the default becomes smaller,
    and a wish is refused with ValueError.
    """
    allocator = params.token_to_kv_pool_allocator
    assert allocator is not None, "a host tier needs a KV pool"
    kvcache = allocator.get_kvcache()
    if kvcache is None:
        raise ValueError("--enable-hierarchical-cache needs a KV pool that says what it keeps")
    token_bytes = sum(rows.shape[1] for rows in device_rows(kvcache, params.page_size))
    token_bytes //= params.page_size
    num_tokens = host_pool_tokens(
        allocator.size, token_bytes, args.hicache_ratio, args.hicache_size, DEFAULT_RATIO
    )
    num_tokens = max(num_tokens, params.page_size)
    num_bytes = num_tokens * token_bytes
    if host_memory_bytes is not None and num_bytes > host_memory_bytes:
        why = (
            f"The host tier needs {num_bytes / GB:.2f} GB for {num_tokens} tokens, and "
            f"{host_memory_bytes / GB:.2f} GB of memory are available."
        )
        fitting = int(host_memory_bytes * DEFAULT_SHARE) // token_bytes
        is_wish = args.hicache_size or args.hicache_ratio is not None
        if is_wish or fitting < params.page_size:
            raise ValueError(
                f"{why} Lower --hicache-ratio or --hicache-size, or bound the pool that it is "
                "measured in by --max-total-tokens."
            )
        logger.warning("%s It gets %d tokens; see --hicache-ratio.", why, fitting)
        num_tokens = fitting
    return HOST_POOLS[args.hicache_mem_layout](kvcache, num_tokens, params.page_size)
