"""The tree finds the longest common prefix, and evicts only what nobody uses."""

import itertools
import random

import pytest
import torch

from sglang.srt.core.adapter import Adapter
from sglang.srt.mem_cache.allocator import BaseTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import (
    CacheInitParams,
    EvictParams,
    InsertParams,
    MatchPrefixParams,
)
from sglang.srt.mem_cache.evict_policy import EvictionStrategy
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey, TreeNode


def simulated(page_size: int = 1) -> RadixCache:
    return RadixCache.create_simulated(page_size=page_size)


def insert(tree: RadixCache, ids: list[int], extra_key: str | None = None) -> int:
    return tree.insert(InsertParams(RadixKey(ids, extra_key))).prefix_len


def matched(tree: RadixCache, ids: list[int], extra_key: str | None = None) -> list[int]:
    key = RadixKey(ids, extra_key)
    return tree.match_prefix(MatchPrefixParams(key)).device_indices.tolist()


class Pool(BaseTokenToKVPoolAllocator):
    """Remembers what was freed."""

    def __init__(self, page_size: int = 1) -> None:
        super().__init__(1024, page_size, torch.float32, "cpu", None)
        self.freed: list[int] = []

    def free(self, free_index: torch.Tensor) -> None:
        self.freed += free_index.tolist()


def clocked(pool: Pool, policy: str = "lru") -> RadixCache:
    ticks = itertools.count()
    return RadixCache(
        CacheInitParams(
            token_to_kv_pool_allocator=pool,
            page_size=pool.page_size,
            eviction_policy=policy,
            clock=lambda: float(next(ticks)),
        )
    )


# ------------------------------------------------------------------ keys and nodes


def test_key_is_a_sequence_in_a_namespace() -> None:
    key = RadixKey([1, 2, 3], "ns")
    assert len(key) == 3
    assert list(key) == [1, 2, 3]
    assert list(key[1:]) == [2, 3] and key[1:].extra_key == "ns"
    assert list(key[-1]) == [3]
    with pytest.raises(IndexError):
        key[3]


def test_key_shows_its_namespace_and_first_ids() -> None:
    assert repr(RadixKey(list(range(12)), "ns")) == (
        "RadixKey(extra_key='ns', token_ids=[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]...)"
    )
    assert "..." not in repr(RadixKey(list(range(10))))


def test_page_hash_depends_on_ids_namespace_and_the_page_before() -> None:
    hashes = [RadixKey([1, 2, 3], extra_key).hash_page(0, 2) for extra_key in (None, "", "a", "b")]
    key = RadixKey([1, 2, 3])
    hashes += [key.hash_page(1, 3), key.hash_page(0, 2, previous=hashes[0])]
    assert len(set(hashes)) == 6
    assert key.hash_page(0, 2) == hashes[0]


def test_node_without_value_is_evicted_and_host_copy_is_protected_in_pairs() -> None:
    node = TreeNode()
    assert node.evicted and not node.backuped
    assert node.get_last_hash_value() is None
    node.protect_host()
    node.release_host()
    with pytest.raises(RuntimeError):
        node.release_host()


def test_split_shares_out_the_hashes_of_the_pages() -> None:
    tree = simulated(page_size=2)
    insert(tree, [1, 2, 3, 4, 5, 6])
    (node,) = tree.root_node.children.values()
    node.hash_value = [node.key.hash_page(start, start + 2) for start in (0, 2, 4)]
    first, *others = node.hash_value
    matched(tree, [1, 2, 9, 9])
    assert node.parent is not None
    assert (node.parent.hash_value, node.hash_value) == ([first], others)
    assert node.get_last_hash_value() == others[-1]


def test_node_ids_are_unique_and_nodes_sort_by_access() -> None:
    old, new = TreeNode(now=1.0), TreeNode(now=2.0)
    assert old.id != new.id
    assert old < new


# ------------------------------------------------------------------ match and insert


def test_empty_tree_matches_nothing() -> None:
    tree = simulated()
    result = tree.match_prefix(MatchPrefixParams(RadixKey([1, 2])))
    assert result.device_indices.tolist() == []
    assert result.last_device_node is tree.root_node


def test_common_prefix_is_matched_and_split() -> None:
    tree = simulated()
    assert insert(tree, [1, 2, 3, 4]) == 0
    assert matched(tree, [1, 2, 9]) == [1, 2]
    assert insert(tree, [1, 2, 5]) == 2
    assert matched(tree, [1, 2, 3, 4, 5]) == [1, 2, 3, 4]
    assert matched(tree, [1, 2, 5]) == [1, 2, 5]
    assert tree.total_size() == 5


def test_match_stops_at_whole_pages() -> None:
    tree = simulated(page_size=4)
    insert(tree, list(range(10)))
    assert tree.total_size() == 8
    assert matched(tree, list(range(7))) == [0, 1, 2, 3]
    assert matched(tree, [0, 1, 2, 9, 4]) == []


def test_namespaces_are_separate() -> None:
    tree = simulated()
    for extra_key in (None, "", "a"):
        assert insert(tree, [1, 2], extra_key) == 0
    assert matched(tree, [1, 2], "b") == []
    assert tree.total_size() == 6


def test_inserting_again_changes_nothing() -> None:
    tree = simulated()
    insert(tree, [1, 2, 3])
    assert insert(tree, [1, 2, 3]) == 3
    assert tree.total_size() == 3


def test_plain_arguments_are_tolerated() -> None:
    tree = simulated()
    tree.insert(RadixKey([1, 2]), torch.tensor([7, 8]))
    assert tree.match_prefix(RadixKey([1, 2])).device_indices.tolist() == [7, 8]
    assert tree.evict(1).num_tokens_evicted == 2


def test_disabled_tree_stays_empty() -> None:
    tree = RadixCache.create_simulated(disable=True)
    insert(tree, [1, 2])
    assert matched(tree, [1, 2]) == []


def test_hits_count_unless_chunked_and_priority_rises_along_the_path() -> None:
    tree = simulated()
    tree.insert(InsertParams(RadixKey([1, 2]), priority=1))
    tree.insert(InsertParams(RadixKey([1, 2, 3]), chunked=True, priority=5))
    tree.insert(InsertParams(RadixKey([1, 2, 3]), priority=3))
    head = tree.match_prefix(RadixKey([1, 2])).last_device_node
    tail = tree.match_prefix(RadixKey([1, 2, 3])).last_device_node
    assert (head.hit_count, head.priority) == (1, 5)
    assert (tail.hit_count, tail.priority) == (1, 5)


def test_split_keeps_counters_and_lock() -> None:
    tree = simulated()
    tree.insert(InsertParams(RadixKey([1, 2, 3, 4]), priority=2))
    node = tree.match_prefix(RadixKey([1, 2, 3, 4])).last_device_node
    tree.inc_lock_ref(node)
    head = tree.match_prefix(RadixKey([1, 2])).last_device_node
    assert (head.lock_ref, head.priority, head.creation_time) == (1, 2, node.creation_time)
    assert node.parent is head
    assert (tree.evictable_size(), tree.protected_size()) == (0, 4)
    tree.dec_lock_ref(node)
    assert (tree.evictable_size(), tree.protected_size()) == (4, 0)


# ------------------------------------------------------------------ locks and eviction


def test_lock_covers_the_ancestors_and_counts() -> None:
    tree = simulated()
    insert(tree, [1, 2, 3])
    insert(tree, [1, 2, 4])
    node = tree.match_prefix(RadixKey([1, 2, 3])).last_device_node
    assert tree.inc_lock_ref(node).delta == -3
    assert tree.inc_lock_ref(node).delta == 0
    assert (tree.evictable_size(), tree.protected_size()) == (1, 3)
    assert tree.dec_lock_ref(node).delta == 0
    assert tree.dec_lock_ref(node).delta == 3


def test_evict_takes_the_least_recently_used_leaf_first() -> None:
    pool = Pool()
    tree = clocked(pool)
    for ids in ([1, 2], [3, 4], [5, 6]):
        insert(tree, ids)
    matched(tree, [1, 2])
    assert tree.evict(EvictParams(1)).num_tokens_evicted == 2
    assert pool.freed == [3, 4]
    assert tree.evict(EvictParams(3)).num_tokens_evicted == 4
    assert pool.freed == [3, 4, 5, 6, 1, 2]
    assert tree.counters.num_evicted_tokens == 6


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("lru", [3, 5, 7, 1]),
        ("mru", [1, 7, 5, 3]),
        ("fifo", [1, 3, 5, 7]),
        ("filo", [7, 5, 3, 1]),
        ("lfu", [3, 5, 7, 1]),
        ("slru", [3, 5, 7, 1]),
        ("priority", [5, 7, 1, 3]),
    ],
)
def test_each_policy_has_its_order(policy: str, order: list[int]) -> None:
    pool = Pool()
    tree = clocked(pool, policy)
    for first, priority in ((1, 3), (3, 9), (5, 0), (7, 0)):
        ids = [first, first + 1]
        tree.insert(InsertParams(key=RadixKey(ids), value=torch.tensor(ids), priority=priority))
    for _ in range(2):  # two hits, and the last use
        insert(tree, [1, 2])
    freed = []
    for _ in order:
        pool.freed.clear()
        assert tree.evict(EvictParams(1)).num_tokens_evicted == 2
        freed.append(pool.freed[0])
    assert freed == order


def test_slru_lets_what_was_found_often_outlive_what_was_used_later() -> None:
    pool = Pool()
    tree = clocked(pool, "slru")
    for ids in ([1, 2], [3, 4], [1, 2], [1, 2], [3, 4], [5, 6]):
        insert(tree, ids)
    assert tree.evict(EvictParams(4)).num_tokens_evicted == 4
    assert pool.freed == [3, 4, 5, 6]


def test_evict_goes_up_when_the_last_child_is_gone() -> None:
    pool = Pool()
    tree = clocked(pool)
    insert(tree, [1, 2, 3])
    insert(tree, [1, 2, 4])
    assert tree.evict(EvictParams(4)).num_tokens_evicted == 4
    assert sorted(pool.freed) == [1, 2, 3, 4]
    assert tree.total_size() == 0


def test_evict_spares_what_is_locked_and_above_it() -> None:
    pool = Pool()
    tree = clocked(pool)
    insert(tree, [1, 2, 3])
    insert(tree, [1, 2, 4])
    tree.inc_lock_ref(tree.match_prefix(RadixKey([1, 2, 3])).last_device_node)
    assert tree.evict(EvictParams(100)).num_tokens_evicted == 1
    assert pool.freed == [4]


def test_evict_nothing_does_nothing() -> None:
    tree = clocked(Pool())
    insert(tree, [1])
    assert tree.evict(0).num_tokens_evicted == 0
    assert tree.total_size() == 1


def test_strategy_may_choose_victims_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.extension_points import EVICTION_POLICIES

    class LongestFirst(EvictionStrategy):
        def select_victim(self, candidates):  # type: ignore[no-untyped-def]
            return max(candidates, key=lambda node: len(node.key))

    EVICTION_POLICIES.register("longest", LongestFirst, source=__name__)
    try:
        pool = Pool()
        tree = clocked(pool, "longest")
        for ids in ([1], [2, 3, 4], [5, 6]):
            insert(tree, ids)
        tree.evict(EvictParams(4))
        assert pool.freed == [2, 3, 4, 5, 6]
    finally:
        del EVICTION_POLICIES["longest"]


def test_unknown_policy_names_the_supported_ones() -> None:
    with pytest.raises(
        ValueError, match="Unknown eviction policy: lifo. Supported policies: 'lru'"
    ):
        clocked(Pool(), "lifo")


def test_tree_says_what_it_is_and_how_much_room_there_is() -> None:
    tree = clocked(Pool())
    insert(tree, [1, 2, 3])
    assert tree.is_tree_cache() and not tree.is_chunk_cache()
    assert tree.available_and_evictable_str() == "available tokens: 1024, evictable tokens: 3"


def test_pretty_print_shows_every_node(capsys: pytest.CaptureFixture[str]) -> None:
    tree = simulated()
    insert(tree, list(range(12)))
    tree.pretty_print()
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].strip() == "12 [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]... r=0"
    assert lines[-1] == "#tokens: 12"


@pytest.mark.parametrize("page_size", [1, 4])
def test_tree_equals_a_set_of_prefixes(page_size: int) -> None:
    """Against the slow twin: every inserted sequence's whole-page prefixes, nothing evicted."""
    rng = random.Random(page_size)
    tree, known = simulated(page_size), {()}
    for _ in range(400):
        ids = [rng.randrange(3) for _ in range(rng.randrange(20))]
        length = max(cut for cut in range(0, len(ids) + 1, page_size) if tuple(ids[:cut]) in known)
        assert matched(tree, ids) == ids[:length]
        if rng.random() < 0.5:
            assert insert(tree, ids) == length
            known |= {tuple(ids[:cut]) for cut in range(0, len(ids) + 1, page_size)}
    assert tree.total_size() == page_size * (len(known) - 1)


def test_an_adapters_pages_have_hashes_that_no_key_of_a_caller_gives() -> None:
    adapter, other = Adapter("f" * 32, "a"), Adapter("e" * 32, "a")
    keys = [None, "", "a", adapter.lora_id, f"\x00lora_id\x00{adapter.lora_id}\x00"]
    hashes = [RadixKey([1, 2], key).hash_page(0, 2) for key in keys]
    hashes += [
        RadixKey([1, 2], key, each).hash_page(0, 2) for key in keys for each in (adapter, other)
    ]
    assert len(set(hashes)) == len(hashes)
    key = RadixKey([1, 2], "k", adapter)
    assert key.match_len(RadixKey([1, 2], "k"), 1) == 0
    assert key[:1].match_len(key, 1) == 1
