"""Which adapter gives up its place on the device for another."""

from abc import ABC, abstractmethod
from collections.abc import Collection

from sglang.srt.extension_points import LORA_EVICTION_POLICIES


class EvictionPolicy(ABC):
    """Knows adapters by their ids. One that has a place was used before, so it is known."""

    @abstractmethod
    def mark_used(self, uid: str) -> None:
        """Called for each adapter of each pass."""

    @abstractmethod
    def select_victim(self, candidates: Collection[str]) -> str:
        """One of the candidates, of which there is at least one."""

    @abstractmethod
    def remove(self, uid: str) -> None:
        """Called when the adapter has lost its place, whatever the reason."""


class LRUEvictionPolicy(EvictionPolicy):
    """The one that was not used for longest."""

    def __init__(self) -> None:
        self._order: dict[str, None] = {}

    def mark_used(self, uid: str) -> None:
        self._order.pop(uid, None)
        self._order[uid] = None

    def select_victim(self, candidates: Collection[str]) -> str:
        return next(uid for uid in self._order if uid in candidates)

    def remove(self, uid: str) -> None:
        self._order.pop(uid, None)


class FIFOEvictionPolicy(LRUEvictionPolicy):
    """The one that has had its place for longest."""

    def mark_used(self, uid: str) -> None:
        self._order.setdefault(uid)


class LFUEvictionPolicy(EvictionPolicy):
    """The one that the fewest passes have used since it got its place; among equals the oldest."""

    def __init__(self) -> None:
        self._num_uses: dict[str, int] = {}

    def mark_used(self, uid: str) -> None:
        self._num_uses[uid] = self._num_uses.get(uid, 0) + 1

    def select_victim(self, candidates: Collection[str]) -> str:
        return min(
            (uid for uid in self._num_uses if uid in candidates), key=self._num_uses.__getitem__
        )

    def remove(self, uid: str) -> None:
        self._num_uses.pop(uid, None)


LRUStrategy = LRUEvictionPolicy
LFUStrategy = LFUEvictionPolicy


def get_eviction_policy(name: str) -> EvictionPolicy:
    """A new policy of a registered name."""
    make = LORA_EVICTION_POLICIES.get(name, None)
    if make is None:
        known = ", ".join(LORA_EVICTION_POLICIES.names())
        raise ValueError(f"Unknown eviction policy: {name}. Registered policies: {known}.")
    policy = make()
    assert isinstance(policy, EvictionPolicy), f"eviction policy {name!r}: {policy!r}"
    return policy
