"""Every page that enters the tree is reported once, and every page that leaves it once."""

import pytest

from sglang.srt.core.kv_events import (
    CPU_PINNED,
    GPU,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvEvent,
    block_hash,
)
from sglang.srt.mem_cache.base_prefix_cache import InsertParams
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey


def tree_of(page_size: int = 2) -> RadixCache:
    tree = RadixCache.create_simulated(page_size=page_size, enable_kv_cache_events=True)
    assert tree.take_events() == [AllBlocksCleared()]
    return tree


def insert(tree: RadixCache, ids: list[int], extra_key: str | None = None) -> list[KvEvent]:
    tree.insert(InsertParams(RadixKey(ids, extra_key)))
    return tree.take_events()


def hashes_of(ids: list[int], page_size: int = 2, extra_key: str | None = None) -> list[int]:
    return [block_hash(page) for page in RadixKey(ids, extra_key).page_hashes(page_size)]


def test_hash_of_a_known_page() -> None:
    assert hashes_of([1, 2, 3, 4], page_size=4) == [-3488128144981237669]


def test_chain_of_pages_equals_hashing_page_by_page() -> None:
    key = RadixKey([5, 6, 7, 8, 9], "ns")
    first = key.hash_page(0, 2)
    assert key.page_hashes(2) == [first, key.hash_page(2, 4, previous=first)]


def test_one_event_per_page_with_its_parent_and_its_ids() -> None:
    first, second = hashes_of([1, 2, 3, 4])
    assert insert(tree_of(), [1, 2, 3, 4, 5]) == [
        BlockStored([first], None, [1, 2], 2, GPU),
        BlockStored([second], first, [3, 4], 2, GPU),
    ]


def test_what_is_there_already_is_not_reported_again() -> None:
    tree = tree_of()
    insert(tree, [1, 2, 3, 4])
    assert insert(tree, [1, 2, 3, 4]) == []
    first, _, third = hashes_of([1, 2, 3, 4, 5, 6])
    assert first != third
    (event,) = insert(tree, [1, 2, 3, 4, 5, 6])
    assert event == BlockStored([third], hashes_of([1, 2, 3, 4])[-1], [5, 6], 2, GPU)


def test_split_is_no_event_and_the_new_branch_hangs_on_the_head() -> None:
    tree = tree_of()
    insert(tree, [1, 2, 3, 4, 5, 6])
    tree.match_prefix(RadixKey([1, 2, 9, 9]))
    assert tree.take_events() == []
    head, branch = hashes_of([1, 2, 9, 9])
    assert insert(tree, [1, 2, 9, 9]) == [BlockStored([branch], head, [9, 9], 2, GPU)]
    removed = remove_all(tree)
    assert sorted(removed) == sorted({*hashes_of([1, 2, 3, 4, 5, 6]), branch})


def remove_all(tree: RadixCache) -> list[int]:
    tree.evict(1 << 30)
    events = tree.take_events()
    assert all(isinstance(event, BlockRemoved) for event in events)
    return [event.block_hashes[0] for event in events if isinstance(event, BlockRemoved)]


def test_eviction_removes_children_before_parents() -> None:
    tree = tree_of()
    insert(tree, [1, 2, 3, 4])
    insert(tree, [1, 2, 3, 4, 5, 6])
    assert remove_all(tree) == hashes_of([1, 2, 3, 4, 5, 6])[::-1]


def test_namespaces_have_hashes_of_their_own_and_are_named() -> None:
    tree = tree_of()
    events = [*insert(tree, [1, 2]), *insert(tree, [1, 2], ""), *insert(tree, [1, 2], "a")]
    assert [event.namespace for event in events if isinstance(event, BlockStored)] == [
        None, "", "a",
    ]  # fmt: skip
    assert len({event.block_hashes[0] for event in events if isinstance(event, BlockStored)}) == 3


def test_reset_clears_once() -> None:
    tree = tree_of()
    insert(tree, [1, 2])
    tree.reset()
    assert tree.take_events() == [AllBlocksCleared()]
    assert remove_all(tree) == []


def test_without_the_option_nothing_is_hashed_or_reported() -> None:
    tree = RadixCache.create_simulated(page_size=2)
    assert insert(tree, [1, 2, 3, 4]) == []
    (node,) = tree.root_node.children.values()
    assert node.hash_value is None


@pytest.mark.parametrize("split_before", [False, True])
def test_events_that_start_late_begin_with_what_is_there(split_before: bool) -> None:
    tree = RadixCache.create_simulated(page_size=2)
    insert(tree, [1, 2, 3, 4, 5, 6])
    if split_before:
        insert(tree, [1, 2, 7, 8])
    tree.start_kv_events()
    cleared, *stored = tree.take_events()
    assert cleared == AllBlocksCleared()
    expected = hashes_of([1, 2, 3, 4, 5, 6]) + (hashes_of([1, 2, 7, 8])[1:] if split_before else [])
    found = [event.block_hashes[0] for event in stored if isinstance(event, BlockStored)]
    assert sorted(found) == sorted(expected)
    known: set[int | None] = {None}
    for event in stored:
        assert isinstance(event, BlockStored)
        assert event.parent_block_hash in known, "parents come first"
        known.add(event.block_hashes[0])
    tree.start_kv_events()
    assert tree.take_events() == [], "a second start changes nothing"


def test_another_tier_reports_the_same_pages_under_its_medium() -> None:
    tree = tree_of()
    insert(tree, [1, 2, 3, 4])
    (node,) = tree.root_node.children.values()
    assert tree.kv_events is not None
    tree.kv_events.stored(node, CPU_PINNED)
    tree.kv_events.removed(node, CPU_PINNED)
    first, second = hashes_of([1, 2, 3, 4])
    assert tree.take_events() == [
        BlockStored([first], None, [1, 2], 2, CPU_PINNED),
        BlockStored([second], first, [3, 4], 2, CPU_PINNED),
        BlockRemoved([second], CPU_PINNED),
        BlockRemoved([first], CPU_PINNED),
    ]
