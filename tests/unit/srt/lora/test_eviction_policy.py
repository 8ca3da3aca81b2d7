"""Which adapter gives up its place."""

from collections.abc import Collection, Iterator

import pytest

from sglang.srt.extension_points import LORA_EVICTION_POLICIES
from sglang.srt.lora.eviction_policy import (
    EvictionPolicy,
    FIFOEvictionPolicy,
    LFUEvictionPolicy,
    LFUStrategy,
    LRUEvictionPolicy,
    LRUStrategy,
    get_eviction_policy,
)


@pytest.mark.parametrize(("name", "victim"), [("lru", "b"), ("fifo", "a"), ("lfu", "c")])
def test_each_policy_has_its_victim(name: str, victim: str) -> None:
    policy = get_eviction_policy(name)
    for uid in ("a", "b", "b", "c", "a"):
        policy.mark_used(uid)
    assert policy.select_victim({"a", "b", "c"}) == victim


@pytest.mark.parametrize("name", ["lru", "fifo", "lfu"])
def test_only_a_candidate_is_a_victim(name: str) -> None:
    policy = get_eviction_policy(name)
    for uid in ("a", "b", "c"):
        policy.mark_used(uid)
    assert policy.select_victim({"b"}) == "b"


@pytest.mark.parametrize("name", ["lru", "fifo", "lfu"])
def test_what_was_removed_begins_anew(name: str) -> None:
    policy = get_eviction_policy(name)
    for uid in ("a", "a", "b"):
        policy.mark_used(uid)
    policy.remove("a")
    policy.remove("never")
    policy.mark_used("a")
    assert policy.select_victim({"a", "b"}) == "b"


def test_the_documented_names_are_the_classes() -> None:
    assert LRUStrategy is LRUEvictionPolicy and LFUStrategy is LFUEvictionPolicy
    assert isinstance(get_eviction_policy("fifo"), FIFOEvictionPolicy)


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(ValueError, match=r"Unknown eviction policy: best\..*fifo.*lfu.*lru"):
        get_eviction_policy("best")


class Newest(EvictionPolicy):
    """A plugin's."""

    def __init__(self) -> None:
        self._uids: list[str] = []

    def mark_used(self, uid: str) -> None:
        if uid not in self._uids:
            self._uids.append(uid)

    def select_victim(self, candidates: Collection[str]) -> str:
        return next(uid for uid in reversed(self._uids) if uid in candidates)

    def remove(self, uid: str) -> None:
        self._uids = [other for other in self._uids if other != uid]


@pytest.fixture
def registered() -> Iterator[str]:
    LORA_EVICTION_POLICIES.register("newest", Newest, source="test")
    yield "newest"
    del LORA_EVICTION_POLICIES["newest"]


def test_a_policy_of_ones_own_is_chosen_by_name(registered: str) -> None:
    policy = get_eviction_policy(registered)
    policy.mark_used("a")
    policy.mark_used("b")
    assert policy.select_victim({"a", "b"}) == "b"
