"""The radix tree: KV of past requests, shared by their common prefixes."""

import sys
from collections.abc import Callable, Iterator

import torch

from sglang.srt.core.kv_events import CPU_PINNED
from sglang.srt.core.request import Req
from sglang.srt.mem_cache.allocator import BaseTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import (
    BasePrefixCache,
    CacheCounters,
    CacheInitParams,
    DecLockRefResult,
    EvictParams,
    EvictResult,
    IncLockRefResult,
    InsertParams,
    InsertResult,
    MatchPrefixParams,
    MatchResult,
)
from sglang.srt.mem_cache.evict_policy import get_eviction_strategy, victim_queue_class
from sglang.srt.mem_cache.kv_events import KvEventRecorder
from sglang.srt.mem_cache.radix_key import RadixKey, TreeNode, shown, whole_pages

__all__ = ["RadixCache", "RadixKey", "TreeNode"]


class RadixCache(BasePrefixCache):
    """Prefixes in whole pages; the root stands for the empty prefix and is never evicted.

    A lock on a node covers its ancestors, so an unlocked node has only unlocked descendants and
    can be evicted leaf by leaf.
    """

    def __init__(self, params: CacheInitParams) -> None:
        self.disable = params.disable
        self.page_size = params.page_size
        self._clock = params.clock
        if params.req_to_token_pool is not None:
            self.req_to_token_pool = params.req_to_token_pool
        self.device = "cpu"
        self._free: Callable[[torch.Tensor], None] = _forget
        if params.token_to_kv_pool_allocator is not None:
            self.token_to_kv_pool_allocator = params.token_to_kv_pool_allocator
            self.device = params.token_to_kv_pool_allocator.device
            self._free = params.token_to_kv_pool_allocator.free
        self.eviction_strategy = get_eviction_strategy(params.eviction_policy)
        self._victims = victim_queue_class(self.eviction_strategy)
        self.counters = CacheCounters()
        self.kv_events = KvEventRecorder(self.page_size) if params.enable_kv_cache_events else None
        self.reset()

    @classmethod
    def create_simulated(
        cls,
        disable: bool = False,
        mock_allocator: BaseTokenToKVPoolAllocator | None = None,
        page_size: int = 1,
        enable_kv_cache_events: bool = False,
    ) -> "RadixCache":
        """A tree without pools: values are token ids."""
        return cls(
            CacheInitParams(
                disable=disable,
                token_to_kv_pool_allocator=mock_allocator,
                page_size=page_size,
                enable_kv_cache_events=enable_kv_cache_events,
            )
        )

    def reset(self) -> None:
        self.root_node = TreeNode(priority=-sys.maxsize, now=self._clock())
        self.root_node.value = torch.empty(0, dtype=torch.int64, device=self.device)
        self.root_node.lock_ref = 1
        self._evictable_leaves: dict[int, TreeNode] = {}
        self._evictable_size = 0
        self._protected_size = 0
        if self.kv_events is not None:
            self.kv_events.cleared()

    # ---------------------------------------------------------------- prefixes

    def match_prefix(self, params: MatchPrefixParams | RadixKey) -> MatchResult:
        """Splits a node when the match ends inside it, so that a lock covers no more than it."""
        key = params if isinstance(params, RadixKey) else params.key
        key = key[: whole_pages(len(key), self.page_size)]
        node = self.root_node
        values = [value_of(node)]
        if not self.disable:
            for node, _ in self._descend(key):
                values.append(value_of(node))
        return MatchResult(torch.cat(values), node, last_host_node=node, best_match_node=node)

    def insert(
        self, params: InsertParams | RadixKey, value: torch.Tensor | None = None
    ) -> InsertResult:
        """The tree owns `value[prefix_len:]` afterwards; a tail shorter than a page is left out."""
        if not isinstance(params, InsertParams):
            params = InsertParams(key=params, value=value)
        if self.disable:
            return InsertResult(0)
        key = params.key[: whole_pages(len(params.key), self.page_size)]
        slots = params.value
        if slots is None:
            slots = torch.tensor(params.key.token_ids, dtype=torch.int64)
        path = list(self._descend(key))
        for node, _ in path:
            node.priority = max(node.priority, params.priority)
            node.hit_count += not params.chunked
        node, matched = path[-1] if path else (self.root_node, 0)
        if matched < len(key):
            self._add_leaf(node, key[matched:], slots[matched : len(key)].clone(), params)
        return InsertResult(matched)

    def _descend(self, key: RadixKey) -> Iterator[tuple[TreeNode, int]]:
        """Nodes that spell the beginning of `key`, each with the length up to its end."""
        now = self._clock()
        node, done = self.root_node, 0
        node.last_access_time = now
        while done < len(key):
            rest = key[done:]
            child = node.children.get(rest.child_key(self.page_size))
            if child is None:
                return
            length = child.key.match_len(rest, self.page_size)
            if length < len(child.key):
                child = self._split(child, length)
            child.last_access_time = now
            node, done = child, done + length
            yield node, done

    def _split(self, child: TreeNode, length: int) -> TreeNode:
        """A new parent takes the first `length` tokens of `child`."""
        assert child.parent is not None
        head = TreeNode(priority=child.priority)
        head.key, child.key = child.key[:length], child.key[length:]
        head.value, child.value = _cut(child.value, length)
        head.host_value, child.host_value = _cut(child.host_value, length)
        head.host_ref_counter = child.host_ref_counter
        head.hit_count, head.lock_ref = child.hit_count, child.lock_ref
        head.last_access_time = child.last_access_time
        head.creation_time = child.creation_time
        head.parent = child.parent
        head.parent.children[head.key.child_key(self.page_size)] = head
        child.parent = head
        head.children[child.key.child_key(self.page_size)] = child
        if child.hash_value:
            pages = length // self.page_size
            head.hash_value = child.hash_value[:pages]
            child.hash_value = child.hash_value[pages:]
        return head

    def _add_leaf(
        self, parent: TreeNode, key: RadixKey, value: torch.Tensor, params: InsertParams
    ) -> None:
        leaf = TreeNode(priority=params.priority, now=self._clock())
        leaf.key, leaf.value, leaf.parent = key, value, parent
        parent.children[key.child_key(self.page_size)] = leaf
        self._evictable_size += len(key)
        self._note(leaf)
        self._note(parent)
        if self.kv_events is not None:
            self.kv_events.stored(leaf)

    # ---------------------------------------------------------------- requests

    def cache_finished_req(self, req: Req, is_insert: bool = True) -> None:
        # of the row:  [0, protected)            the tree's, under our lock
        #              [protected, prefix_len)   ours, but the tree has a copy: free
        #              [prefix_len, aligned)     becomes the tree's
        #              [aligned, committed)      shorter than a page, or not computed yet: free
        committed, protected = req.kv_committed_len, req.cache_protected_len
        slots = self.req_to_token_pool.slots(req, 0, committed)
        if self.disable or not is_insert:
            self._free(slots[protected:])
        else:
            aligned = whole_pages(req.kv_valid_len, self.page_size)
            prefix_len = self.insert(_insert_params(req, slots[:aligned])).prefix_len
            self._free(slots[protected:prefix_len])
            self._free(slots[aligned:])
        self.dec_lock_ref(req.last_node)
        self.req_to_token_pool.free(req)
        req.last_node, req.prefix_indices = None, None
        req.kv_committed_len = req.kv_pending_len = req.cache_protected_len = 0

    def cache_unfinished_req(self, req: Req, chunked: bool = False) -> None:
        committed, protected = req.kv_committed_len, req.cache_protected_len
        slots = self.req_to_token_pool.slots(req, 0, committed)
        if self.disable:
            req.prefix_indices = slots
            return
        aligned = whole_pages(req.kv_valid_len, self.page_size)
        params = _insert_params(req, slots[:aligned], chunked)
        prefix_len = self.insert(params).prefix_len
        match = self.match_prefix(params.key)
        assert len(match.device_indices) == aligned, "what was inserted must match"
        self.inc_lock_ref(match.last_device_node)
        self.dec_lock_ref(req.last_node)
        self._free(slots[protected:prefix_len])
        self.req_to_token_pool.write(
            (req.req_pool_idx, slice(protected, aligned)), match.device_indices[protected:]
        )
        req.prefix_indices = torch.cat([match.device_indices, slots[aligned:]])
        req.last_node = match.last_device_node
        req.cache_protected_len = aligned

    # ---------------------------------------------------------------- eviction

    def evict(self, params: EvictParams | int) -> EvictResult:
        wanted = params if isinstance(params, int) else params.num_tokens
        if self.disable or wanted <= 0:
            return EvictResult()
        victims = self._victims(self.eviction_strategy, self._evictable_leaves.values())
        evicted = 0
        while evicted < wanted and victims:
            victim = victims.pop()
            parent = victim.parent
            assert parent is not None, "the root is never evicted"
            self._free(value_of(victim))
            evicted += len(victim.key)
            self._remove_leaf(victim, parent)
            if parent.id in self._evictable_leaves:
                victims.push(parent)
        self.counters.num_evicted_tokens += evicted
        return EvictResult(evicted)

    def _remove_leaf(self, leaf: TreeNode, parent: TreeNode) -> None:
        del parent.children[leaf.key.child_key(self.page_size)]
        del self._evictable_leaves[leaf.id]
        self._evictable_size -= len(leaf.key)
        leaf.value = None
        self._note(parent)
        if self.kv_events is not None:
            self.kv_events.removed(leaf)

    def inc_lock_ref(self, node: TreeNode | None) -> IncLockRefResult:
        before = self._evictable_size
        for step in self._up(node):
            if step.lock_ref == 0:
                self._evictable_size -= len(step.key)
                self._protected_size += len(step.key)
            step.lock_ref += 1
            self._note(step)
        return IncLockRefResult(self._evictable_size - before)

    def dec_lock_ref(self, node: TreeNode | None) -> DecLockRefResult:
        before = self._evictable_size
        for step in self._up(node):
            assert step.lock_ref > 0, f"node {step.id} is not locked"
            step.lock_ref -= 1
            if step.lock_ref == 0:
                self._evictable_size += len(step.key)
                self._protected_size -= len(step.key)
            self._note(step)
        return DecLockRefResult(self._evictable_size - before)

    def _up(self, node: TreeNode | None) -> Iterator[TreeNode]:
        while node is not None and node is not self.root_node and not self.disable:
            yield node
            node = node.parent

    def _note(self, node: TreeNode) -> None:
        """Keeps the set of unlocked leaves, where eviction starts, up to date."""
        if node is not self.root_node and node.lock_ref == 0 and not node.children:
            self._evictable_leaves[node.id] = node
        else:
            self._evictable_leaves.pop(node.id, None)

    def evictable_size(self) -> int:
        return self._evictable_size

    def protected_size(self) -> int:
        return self._protected_size

    # ---------------------------------------------------------------- events

    def start_kv_events(self) -> None:
        if self.kv_events is not None:
            return
        self.kv_events = KvEventRecorder(self.page_size)
        self.kv_events.cleared()
        for node in _below(self.root_node):
            if not node.evicted:
                self.kv_events.stored(node)
            if node.backuped:
                self.kv_events.stored(node, CPU_PINNED)

    # ---------------------------------------------------------------- for people

    def pretty_print(self) -> None:
        stack = [(self.root_node, 0)]
        while stack:
            node, depth = stack.pop()
            print(" " * depth, len(node.key), shown(node.key.token_ids), f"r={node.lock_ref}")
            stack.extend((child, depth + 2) for child in node.children.values())
        print(f"#tokens: {self.total_size()}")


def value_of(node: TreeNode) -> torch.Tensor:
    assert node.value is not None, f"node {node.id} of the tree was evicted"
    return node.value


def _below(root: TreeNode) -> Iterator[TreeNode]:
    """All nodes but the root, parents first."""
    stack = list(root.children.values())
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.children.values())


def _cut(value: torch.Tensor | None, length: int) -> tuple[torch.Tensor | None, ...]:
    """Both parts, in memory of their own."""
    if value is None:
        return None, None
    return value[:length].clone(), value[length:].clone()


def _insert_params(req: Req, slots: torch.Tensor, chunked: bool = False) -> InsertParams:
    key = RadixKey(req.fill_ids[: len(slots)], req.extra_key, req.adapter)
    return InsertParams(key, slots, chunked, req.priority or 0)


def _forget(slots: torch.Tensor) -> None:
    """Frees nothing: a simulated tree holds no slots."""
