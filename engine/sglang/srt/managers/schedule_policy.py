"""In which order waiting requests are admitted."""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from sglang.srt.core.request import Req
from sglang.srt.extension_points import SCHEDULE_POLICIES
from sglang.srt.managers.priority import Priorities
from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache
from sglang.srt.mem_cache.request_memory import find_prefix

# Matching every waiting request each step costs more than a better order brings.
MAX_MATCHED_QUEUE = 128


class SchedulePolicy:
    """One named order, applied to the queue before each prefill batch; urgent requests first."""

    def __init__(
        self, policy: str, tree_cache: BasePrefixCache, priorities: Priorities | None = None
    ) -> None:
        order = SCHEDULE_POLICIES.get(policy, None)
        if order is None:
            known = ", ".join(SCHEDULE_POLICIES.names())
            raise ValueError(f"Unknown schedule_policy: schedule_policy={policy!r}; known: {known}")
        self.policy = policy
        self._order = order
        self._tree_cache = tree_cache
        self._priorities = priorities

    def calc_priority(self, waiting_queue: list[Req], running_batch: Sequence[Req] = ()) -> None:
        """Sorts the queue in place, next request first."""
        self._order(waiting_queue, self._tree_cache, running_batch)
        if self._priorities is not None:
            self._priorities.sort(waiting_queue)


def arrival_order(waiting: list[Req], tree_cache: BasePrefixCache, running: Sequence[Req]) -> None:
    """fcfs and priority: the queue is in this order already."""


def longest_prefix_first(
    waiting: list[Req], tree_cache: BasePrefixCache, running: Sequence[Req]
) -> None:
    """lpm: arrival order among equals, when nothing is cached, and in long queues."""
    if not _is_worth_matching(waiting, tree_cache):
        return
    for req in waiting:
        find_prefix(req, tree_cache)
    waiting.sort(key=lambda req: -req.found_len)


def busiest_branch(waiting: list[Req], tree_cache: BasePrefixCache, running: Sequence[Req]) -> None:
    """dfs-weight: depth first through the prefix tree, into the branch that most requests wait for;
    so a branch is used up before another one may evict it. Arrival order where `lpm` has it.
    """
    if not _is_worth_matching(waiting, tree_cache):
        return
    branches = _Branches()
    for req in waiting:
        branches.add(req, find_prefix(req, tree_cache).last_device_node)
    waiting[:] = branches.in_order()


def longest_output_first(
    waiting: list[Req], tree_cache: BasePrefixCache, running: Sequence[Req]
) -> None:
    """lof: who may write most begins first, so that the batch ends together."""
    waiting.sort(key=lambda req: -req.max_new_tokens)


def random_order(waiting: list[Req], tree_cache: BasePrefixCache, running: Sequence[Req]) -> None:
    """random: a new order at each step, so nobody waits for ever behind others."""
    random.shuffle(waiting)


def running_keys_first(
    waiting: list[Req], tree_cache: BasePrefixCache, running: Sequence[Req]
) -> None:
    """routing-key: whose key most running requests have goes first; so those who share a context
    run together. Arrival order among equals.
    """
    counts = Counter(req.routing_key for req in running if req.routing_key)
    if counts:
        waiting.sort(key=lambda req: -counts[req.routing_key or ""])


def _is_worth_matching(waiting: list[Req], tree_cache: BasePrefixCache) -> bool:
    return not tree_cache.is_chunk_cache() and len(waiting) <= MAX_MATCHED_QUEUE


class _Branches:
    """The part of the prefix tree that the waiting requests' prefixes make up."""

    def __init__(self) -> None:
        self._reqs: dict[int, list[Req]] = {}  # by the node that ends their prefix
        self._weights: dict[int, int] = {}  # requests at the node and below
        self._children: dict[int, list[int]] = {}
        self._roots: list[int] = []

    def add(self, req: Req, node: Any) -> None:
        self._reqs.setdefault(id(node), []).append(req)
        while node is not None:
            # Nodes of other caches need not know their parent: then each is a branch of its own.
            parent = getattr(node, "parent", None)
            if id(node) not in self._weights:
                siblings = self._roots if parent is None else self._below(parent)
                siblings.append(id(node))
            self._weights[id(node)] = self._weights.get(id(node), 0) + 1
            node = parent

    def in_order(self) -> list[Req]:
        ordered: list[Req] = []
        pending = self._busiest_last(self._roots)
        while pending:
            node = pending.pop()
            ordered += self._reqs.get(node, [])
            pending += self._busiest_last(self._children.get(node, []))
        return ordered

    def _below(self, parent: Any) -> list[int]:
        return self._children.setdefault(id(parent), [])

    def _busiest_last(self, nodes: list[int]) -> list[int]:
        """Equals keep the order of arrival, seen from the end."""
        return sorted(nodes, key=self._weights.__getitem__, reverse=True)[::-1]
