"""Which cached prefix goes first when memory is short."""

import heapq
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from sglang.srt.extension_points import EVICTION_POLICIES

if TYPE_CHECKING:
    from sglang.srt.mem_cache.radix_key import TreeNode


class EvictionStrategy:
    """An order of victims. A subclass overrides one of the two methods."""

    def get_priority(self, node: "TreeNode") -> Any:
        """A comparable value; the node with the smallest one goes first."""
        raise NotImplementedError(f"{type(self).__name__} orders nodes by select_victim only")

    def select_victim(self, candidates: "Iterable[TreeNode]") -> "TreeNode":
        """One of the candidates, which are unlocked leaves."""
        return min(candidates, key=self.get_priority)


class LRUStrategy(EvictionStrategy):
    """The one that was not used for longest."""

    def get_priority(self, node: "TreeNode") -> float:
        return node.last_access_time


class LFUStrategy(EvictionStrategy):
    """The one that was found least often; among equals the one not used for longest."""

    def get_priority(self, node: "TreeNode") -> tuple[int, float]:
        return node.hit_count, node.last_access_time


class FIFOStrategy(EvictionStrategy):
    """The oldest."""

    def get_priority(self, node: "TreeNode") -> float:
        return node.creation_time


class MRUStrategy(EvictionStrategy):
    """The one that was used last: good where everything is read in turns that do not fit."""

    def get_priority(self, node: "TreeNode") -> float:
        return -node.last_access_time


class FILOStrategy(EvictionStrategy):
    """The youngest."""

    def get_priority(self, node: "TreeNode") -> float:
        return -node.creation_time


class PriorityStrategy(EvictionStrategy):
    """The one that only the least urgent requests have used; among equals as LRU."""

    def get_priority(self, node: "TreeNode") -> tuple[int, float]:
        return node.priority, node.last_access_time


class SLRUStrategy(EvictionStrategy):
    """LRU in two segments: what was found often enough goes only when nothing else is left."""

    def __init__(self, protected_threshold: int = 2) -> None:
        self.protected_threshold = protected_threshold  # hits

    def get_priority(self, node: "TreeNode") -> tuple[bool, float]:
        return node.hit_count >= self.protected_threshold, node.last_access_time


def get_eviction_strategy(name: str) -> EvictionStrategy:
    policy = EVICTION_POLICIES.get(name.lower(), None)
    if policy is None:
        known = ", ".join(repr(known) for known in EVICTION_POLICIES)
        raise ValueError(f"Unknown eviction policy: {name}. Supported policies: {known}.")
    strategy = policy()
    assert isinstance(strategy, EvictionStrategy), f"eviction policy {name!r}: {strategy!r}"
    return strategy


class VictimQueue:
    """Victims one by one, by a heap if the strategy gives priorities."""

    def __init__(self, strategy: EvictionStrategy, leaves: "Iterable[TreeNode]") -> None:
        self._strategy = strategy
        self._heap: list[tuple[Any, int, TreeNode]] = [self._entry(leaf) for leaf in leaves]
        self._order()

    def __bool__(self) -> bool:
        return bool(self._heap)

    def push(self, node: "TreeNode") -> None:
        heapq.heappush(self._heap, self._entry(node))

    def pop(self) -> "TreeNode":
        return heapq.heappop(self._heap)[2]

    def _entry(self, node: "TreeNode") -> "tuple[Any, int, TreeNode]":
        return self._strategy.get_priority(node), node.id, node

    def _order(self) -> None:
        heapq.heapify(self._heap)


class ChosenVictims(VictimQueue):
    """Victims one by one, asked of a strategy that overrides `select_victim`."""

    def push(self, node: "TreeNode") -> None:
        self._heap.append(self._entry(node))

    def pop(self) -> "TreeNode":
        victim = self._strategy.select_victim([node for _, _, node in self._heap])
        self._heap = [entry for entry in self._heap if entry[2] is not victim]
        return victim

    def _entry(self, node: "TreeNode") -> "tuple[Any, int, TreeNode]":
        return 0, node.id, node

    def _order(self) -> None:
        """The strategy looks at all of them each time."""


def victim_queue_class(strategy: EvictionStrategy) -> type[VictimQueue]:
    if type(strategy).select_victim is EvictionStrategy.select_victim:
        return VictimQueue
    return ChosenVictims
