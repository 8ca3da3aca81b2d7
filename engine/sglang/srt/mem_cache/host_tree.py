"""The radix tree over two tiers: the KV pool, and host memory below it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from sglang.srt.arg_groups.hicache import WRITE_BACK, WRITE_THROUGH_SELECTIVE
from sglang.srt.core.kv_events import CPU_PINNED, GPU
from sglang.srt.mem_cache.base_prefix_cache import (
    CacheInitParams,
    EvictParams,
    EvictResult,
    InsertParams,
    InsertResult,
    MatchPrefixParams,
    MatchResult,
)
from sglang.srt.mem_cache.kv_copies import Done, KvCopies
from sglang.srt.mem_cache.memory_pool_host import HostKVPool
from sglang.srt.mem_cache.radix_cache import RadixCache, value_of
from sglang.srt.mem_cache.radix_key import RadixKey, TreeNode, whole_pages

# Fewer tokens are computed again: that costs less than bringing them.
LOAD_BACK_THRESHOLD = 10
SELECTIVE_HITS = 2


class HostTreeCache(RadixCache):
    """Each node stands on the device (`value`), on the host (`host_value`), or on both.

    A node on the device has only ancestors on the device. A node on the host alone may hang below
    one that the host lacks; if the device drops that one, what hangs below it goes too.

    Decisions are made here, in the scheduler's thread; bytes move in `take_kv_copies`, which run in
    the order in which they were decided, between passes. So a slot may be handed out again at once.
    Host pages of copies under way are pinned, because storage fills host pages beside that order.
    """

    def __init__(self, params: CacheInitParams, host_pool: HostKVPool, write_policy: str) -> None:
        self.host_pool = host_pool
        self.write_policy = write_policy
        self.copies = KvCopies(host_pool)
        self._host_leaves: dict[int, TreeNode] = {}
        self._host_used = 0
        super().__init__(params)
        self.counters.num_host_total_tokens = host_pool.size

    def reset(self) -> None:
        self.copies.drop()
        if self._host_used:
            for node in nodes_below(self.root_node):
                if node.backuped:
                    self.host_pool.free(host_value_of(node))
        self._host_leaves, self._host_used = {}, 0
        super().reset()

    # ---------------------------------------------------------------- prefixes

    def match_prefix(self, params: MatchPrefixParams | RadixKey) -> MatchResult:
        key = params if isinstance(params, RadixKey) else params.key
        key = key[: whole_pages(len(key), self.page_size)]
        device = host = best = self.root_node
        values, host_len = [value_of(device)], 0
        for best, _ in self._descend(key):
            if best.evicted:
                host_len += len(best.key)
            else:
                values.append(value_of(best))
                device = best
            if best.backuped:
                host = best
        return MatchResult(torch.cat(values), device, host, best, host_len)

    def insert(
        self, params: InsertParams | RadixKey, value: torch.Tensor | None = None
    ) -> InsertResult:
        """What the host alone had gets the new slots too: they hold the same."""
        if not isinstance(params, InsertParams):
            params = InsertParams(key=params, value=value)
        key = params.key[: whole_pages(len(params.key), self.page_size)]
        slots = params.value
        assert slots is not None, "a tree of two tiers holds slots"
        on_device = matched = 0
        node = self.root_node
        path = []
        for node, end in self._descend(key):
            node.priority = max(node.priority, params.priority)
            node.hit_count += not params.chunked
            if node.evicted:
                self._revive(node, slots[matched:end].clone())
            else:
                on_device = end
            matched = end
            path.append(node)
        if matched < len(key):
            self._add_leaf(node, key[matched:], slots[matched : len(key)].clone(), params)
            path.append(node.children[key[matched:].child_key(self.page_size)])
        if not params.chunked:
            self._write_through(path)
        return InsertResult(on_device)

    def _revive(self, node: TreeNode, slots: torch.Tensor) -> None:
        node.value = slots
        self._evictable_size += len(node.key)
        self._note(node)
        self._note(node.parent or self.root_node)
        if self.kv_events is not None:
            self.kv_events.stored(node, GPU)

    def _write_through(self, path: list[TreeNode]) -> None:
        """From the root on, so that the host has no page without the ones before it."""
        if self.write_policy == WRITE_BACK:
            return
        for node in path:
            if self.write_policy == WRITE_THROUGH_SELECTIVE and node.hit_count < SELECTIVE_HITS:
                return
            if not node.backuped and not self.write_backup(node):
                return

    # ---------------------------------------------------------------- device to host

    def evict(self, params: EvictParams | int) -> EvictResult:
        wanted = params if isinstance(params, int) else params.num_tokens
        if wanted <= 0:
            return EvictResult()
        victims = self._victims(self.eviction_strategy, self._evictable_leaves.values())
        evicted = 0
        while evicted < wanted and victims:
            victim = victims.pop()
            parent = victim.parent
            assert parent is not None, "the root is never evicted"
            if self.write_policy == WRITE_BACK and not victim.backuped:
                self.write_backup(victim)
            evicted += self._leave_device(victim)
            if parent.id in self._evictable_leaves:
                victims.push(parent)
        self.counters.num_evicted_tokens += evicted
        return EvictResult(evicted)

    def _leave_device(self, node: TreeNode) -> int:
        self._free(value_of(node))
        self._evictable_size -= len(node.key)
        node.value = None
        self._note(node)
        if self.kv_events is not None:
            self.kv_events.removed(node)
        if not node.backuped:
            for lost in reversed(list(nodes_below(node))):
                self._leave_host(lost)
            unlink(node, self.page_size)
        self._note(node.parent or self.root_node)
        return len(node.key)

    def write_backup(self, node: TreeNode) -> int:
        """Copies the node to the host. Returns its length, or 0 if the host has no room."""
        parent = node.parent
        assert parent is not None and not node.backuped, f"node {node.id} cannot be backed up"
        with protected(self, [parent]):
            slots = self.alloc_host(len(node.key))
        if slots is None:
            return 0
        self._enter_host(node, slots)
        self.counters.num_backed_up_tokens += len(node.key)
        self.copies.to_host(value_of(node), slots, self._storing(node))
        return len(node.key)

    def _storing(self, node: TreeNode) -> Callable[[Done], None] | None:
        """What becomes of the node's pages once they are on the host."""
        return None

    # ---------------------------------------------------------------- host to device

    def load_back(self, node: TreeNode, mem_quota: int | None = None) -> torch.Tensor | None:
        """Brings the node and what lies above it to the device, from the top, as far as there is
        room. Returns the new slots, or None if too little would come.
        """
        path = evicted_path(node)
        anchor = path[0].parent if path else node
        allocator = self.token_to_kv_pool_allocator
        self.inc_lock_ref(anchor)
        quota = allocator.available_size() + self.evictable_size()
        if mem_quota is not None:
            quota = min(quota, mem_quota)
        while path and sum(len(each.key) for each in path) > quota:
            path.pop()
        total = sum(len(each.key) for each in path)
        slots = None
        if total >= LOAD_BACK_THRESHOLD:
            with protected(self, path):
                self.evict(EvictParams(total - allocator.available_size()))
            slots = allocator.alloc(total)
        self.dec_lock_ref(anchor)
        if slots is None:
            return None
        self.copies.to_device(torch.cat([host_value_of(each) for each in path]), slots)
        pieces = torch.split(slots, [len(each.key) for each in path])
        for each, piece in zip(path, pieces, strict=True):
            self._revive(each, piece.clone())
        self.counters.num_loaded_back_tokens += total
        return slots

    # ---------------------------------------------------------------- the host's pages

    def evict_host(self, num_tokens: int) -> int:
        """Drops unprotected host pages, leaves first. Returns how many tokens became free."""
        victims = self._victims(self.eviction_strategy, self._host_leaves.values())
        freed = 0
        while freed < num_tokens and victims:
            victim = victims.pop()
            parent = victim.parent
            assert parent is not None, "the root is never evicted"
            if self.host_pool.is_pinned(host_value_of(victim)):
                continue
            freed += self._leave_host(victim)
            if parent.id in self._host_leaves:
                victims.push(parent)
        return freed

    @property
    def num_host_tokens(self) -> int:
        """Tokens that the tree has on the host."""
        return self._host_used

    def insert_host(self, key: RadixKey, start: int, slots: torch.Tensor) -> int:
        """Adds host pages that continue the first `start` tokens; takes the slots over in any case.
        Returns how many tokens were new.
        """
        end = start + len(slots)
        node, matched = [(self.root_node, 0), *self._descend(key[:end])][-1]
        if matched < start or matched >= end:  # what came before is gone, or all is there
            self.host_pool.free(slots)
            return 0
        self.host_pool.free(slots[: matched - start])
        leaf = TreeNode(now=self._clock())
        leaf.key, leaf.parent = key[matched:end], node
        node.children[leaf.key.child_key(self.page_size)] = leaf
        self._enter_host(leaf, slots[matched - start :].clone())
        self.counters.num_prefetched_tokens += end - matched
        return end - matched

    def alloc_host(self, num_tokens: int) -> torch.Tensor | None:
        """Room for pages, after eviction where that helps; None if there is none."""
        if num_tokens > self.host_pool.size:
            return None
        missing = num_tokens - self.host_pool.available_size()
        if missing > 0:
            self.evict_host(missing)
        return self.host_pool.alloc(num_tokens)

    def _enter_host(self, node: TreeNode, slots: torch.Tensor) -> None:
        node.host_value = slots
        self._host_used += len(node.key)
        self.note_host(node)
        self.note_host(node.parent or self.root_node)
        if self.kv_events is not None:
            self.kv_events.stored(node, CPU_PINNED)

    def _leave_host(self, node: TreeNode) -> int:
        """A node that no tier has any more leaves the tree."""
        self.host_pool.free(host_value_of(node))
        self._host_used -= len(node.key)
        node.host_value = None
        if self.kv_events is not None:
            self.kv_events.removed(node, CPU_PINNED)
        self.note_host(node)
        if node.evicted:
            unlink(node, self.page_size)
        self.note_host(node.parent or self.root_node)
        return len(node.key)

    def _note(self, node: TreeNode) -> None:
        is_leaf = not node.evicted and all(child.evicted for child in node.children.values())
        if node is not self.root_node and node.lock_ref == 0 and is_leaf:
            self._evictable_leaves[node.id] = node
        else:
            self._evictable_leaves.pop(node.id, None)

    def note_host(self, node: TreeNode) -> None:
        """Keeps the set of nodes where eviction of the host starts up to date."""
        is_leaf = node.backuped and not any(child.backuped for child in node.children.values())
        if is_leaf and node.host_ref_counter == 0:
            self._host_leaves[node.id] = node
        else:
            self._host_leaves.pop(node.id, None)


@contextmanager
def protected(tree: HostTreeCache, nodes: list[TreeNode]) -> Iterator[None]:
    """Host copies of the nodes stay while the block runs."""
    for node in nodes:
        node.protect_host()
        tree.note_host(node)
    try:
        yield
    finally:
        for node in nodes:
            node.release_host()
            tree.note_host(node)


def nodes_below(node: TreeNode) -> Iterator[TreeNode]:
    """All descendants, parents before children."""
    stack = list(node.children.values())
    while stack:
        each = stack.pop()
        stack.extend(each.children.values())
        yield each


def evicted_path(node: TreeNode) -> list[TreeNode]:
    """The node and its ancestors that the device lacks, from the top."""
    path = []
    while node.evicted:
        assert node.parent is not None, "the root is on the device"
        path.append(node)
        node = node.parent
    return path[::-1]


def host_value_of(node: TreeNode) -> torch.Tensor:
    assert isinstance(node.host_value, torch.Tensor), f"node {node.id} is not on the host"
    return node.host_value


def unlink(node: TreeNode, page_size: int) -> None:
    """Takes a node without children out of the tree."""
    assert node.parent is not None and not node.children
    del node.parent.children[node.key.child_key(page_size)]
