"""Prefixes on the device and on the host."""

import random

import pytest
import torch

from sglang.srt.mem_cache.base_prefix_cache import CacheInitParams, InitLoadBackParams
from sglang.srt.mem_cache.hiradix_cache import HiRadixCache
from sglang.srt.mem_cache.memory_pool_host import HOST_POOLS
from sglang.srt.mem_cache.radix_key import RadixKey
from tests.unit.srt.managers.engine import HashKV
from tests.unit.srt.mem_cache.tiers import Tiers, options

POLICIES = ["write_through", "write_through_selective", "write_back"]
A, B = list(range(1, 33)), list(range(101, 133))


def test_what_the_device_drops_is_found_on_the_host_and_comes_back() -> None:
    tiers = Tiers(pool=32)
    tiers.compute(A)
    tiers.compute(B)
    assert (tiers.on_device(A), tiers.on_host(A)) == (0, 32)
    assert tiers.load(A) == 32
    tiers.check()
    assert (tiers.on_device(A), tiers.on_host(A)) == (32, 0)
    assert tiers.cache.counters.num_loaded_back_tokens == 32


def test_a_match_names_the_end_in_each_tier() -> None:
    tiers = Tiers(pool=64)
    tiers.compute(A)
    tiers.compute(A[:16] + B[:16])
    tiers.load(A)
    tiers.cache.evict(32)  # both tails; the head is on the device
    match = tiers.cache.match_prefix(RadixKey(A))
    assert len(match.device_indices) == 16
    assert match.host_hit_length == 16
    assert match.best_match_node is match.last_host_node
    assert match.best_match_node.parent is match.last_device_node
    tiers.check()


@pytest.mark.parametrize(
    "policy,after_one,after_two",
    [("write_through", 32, 32), ("write_through_selective", 0, 0), ("write_back", 0, 0)],
)
def test_when_the_host_gets_a_copy(policy: str, after_one: int, after_two: int) -> None:
    tiers = Tiers(pool=64, hicache_write_policy=policy)
    tiers.compute(A)
    assert tiers.cache.num_host_tokens == after_one
    tiers.compute(A)
    assert tiers.cache.num_host_tokens == after_two
    tiers.compute(A)  # the second hit
    assert tiers.cache.num_host_tokens == (0 if policy == "write_back" else 32)
    tiers.cache.evict(32)
    assert tiers.cache.num_host_tokens == 32
    tiers.check()


def test_chunks_are_not_copied_until_the_prompt_is_whole() -> None:
    tiers = Tiers()
    tiers.compute(A[:16], chunked=True)
    assert tiers.cache.num_host_tokens == 0
    tiers.compute(A)
    assert tiers.cache.num_host_tokens == 32


def test_few_tokens_are_not_worth_bringing() -> None:
    tiers = Tiers(pool=32)
    tiers.compute(A[:9])
    tiers.compute(B)
    assert tiers.on_host(A[:9]) == 9
    assert tiers.load(A[:9]) == 0
    tiers.compute(A[:10])
    tiers.cache.evict(32)
    assert tiers.load(A[:10]) == 10


def test_what_is_being_brought_is_not_dropped_for_what_makes_room() -> None:
    tiers = Tiers(pool=32, hicache_ratio=1.0, hicache_write_policy="write_back")
    tiers.compute(A)
    tiers.compute(B)  # A is on the host now, and fills it
    assert tiers.load(A) == 32
    assert tiers.on_host(B) + tiers.on_device(B) == 0
    tiers.check()


def test_the_quota_bounds_what_comes_from_the_top() -> None:
    tiers = Tiers(pool=64)
    tiers.compute(A[:16])
    tiers.compute(A)
    tiers.cache.evict(64)
    assert tiers.load(A, quota=15) == 0
    assert tiers.load(A, quota=31) == 16
    assert (tiers.on_device(A), tiers.on_host(A)) == (16, 16)
    tiers.check()


def test_a_locked_pool_has_no_room_to_load() -> None:
    tiers = Tiers(pool=32)
    tiers.compute(A)
    tiers.compute(B)
    node = tiers.cache.match_prefix(RadixKey(B)).last_device_node
    tiers.cache.inc_lock_ref(node)
    assert tiers.load(A) == 0
    tiers.cache.dec_lock_ref(node)
    assert tiers.load(A) == 32
    tiers.check()


def test_init_load_back_returns_slots_and_node() -> None:
    tiers = Tiers(pool=32)
    tiers.compute(A)
    tiers.compute(B)
    match = tiers.cache.match_prefix(RadixKey(A))
    params = InitLoadBackParams(match.best_match_node, match.host_hit_length, 32)
    slots, node = tiers.cache.init_load_back(params)
    assert len(slots) == 32 and node is match.best_match_node
    params.mem_quota = 0
    tiers.cache.evict(32)
    slots, node = tiers.cache.init_load_back(params)
    assert len(slots) == 0 and node is tiers.cache.root_node


def test_computing_what_the_host_has_puts_it_on_the_device_too() -> None:
    tiers = Tiers(pool=32)
    tiers.compute(A)
    tiers.compute(B)
    tiers.compute(A)
    assert (tiers.on_device(A), tiers.on_host(A)) == (32, 0)
    assert tiers.cache.num_host_tokens == 64
    tiers.check()


def test_a_full_host_drops_what_was_not_used_for_longest() -> None:
    tiers = Tiers(pool=32, hicache_ratio=1.5)
    prompts = [[i * 100 + k for k in range(16)] for i in range(1, 6)]
    for prompt in prompts:
        tiers.compute(prompt)
    assert [tiers.on_host(p) + tiers.on_device(p) for p in prompts] == [0, 0, 16, 16, 16]
    tiers.check()


def test_a_prefix_longer_than_the_host_costs_the_others_nothing() -> None:
    tiers = Tiers(pool=64, hicache_ratio=0.5)
    tiers.compute(B[:16])
    tiers.compute(A + [99])
    assert tiers.cache.num_host_tokens == 16
    tiers.check()


def test_dropping_a_node_without_a_copy_takes_what_hangs_below_it() -> None:
    tiers = Tiers(pool=64, hicache_write_policy="write_back")
    tiers.compute(A[:16])
    tiers.compute(A)
    tiers.cache.evict(16)  # the tail goes to the host
    tiers.cache.write_policy = "write_through"
    tiers.cache.evict(16)  # the head has no copy
    assert tiers.on_host(A) == 0
    assert tiers.cache.num_host_tokens == 0
    tiers.check()


def test_reset_gives_all_back_even_in_the_middle_of_copies() -> None:
    tiers = Tiers(pool=32)
    tiers.compute(A[:16])
    tiers.decide()  # this copy is with the forward thread
    tiers.compute(B[:8])  # and this one is not yet
    tiers.cache.reset()
    tiers.allocator.clear()
    assert tiers.cache.host_pool.num_dropped_tokens() == 16
    tiers.check()
    tiers.cache.check_hicache_events()
    assert tiers.cache.host_pool.available_size() == tiers.cache.host_pool.size


def test_more_than_the_machine_has_is_refused() -> None:
    params = CacheInitParams(token_to_kv_pool_allocator=Tiers().allocator)
    with pytest.raises(ValueError, match="Lower --hicache-ratio or --hicache-size"):
        HiRadixCache(params, options(hicache_ratio=1000.0), host_memory_bytes=1000)


def test_the_default_takes_half_of_what_is_there_where_it_does_not_fit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    params = CacheInitParams(token_to_kv_pool_allocator=Tiers(pool=64).allocator)
    cache = HiRadixCache(params, options(hicache_ratio=None), host_memory_bytes=1 << 20)
    assert cache.host_pool.size == 128
    cache = HiRadixCache(params, options(hicache_ratio=None), host_memory_bytes=1000)
    assert cache.host_pool.size == 62
    assert "It gets 62 tokens" in caplog.text
    cache = HiRadixCache(params, options(hicache_size=1), host_memory_bytes=1 << 40)
    assert cache.host_pool.size == 10**9 // 8


def test_events_name_the_tier() -> None:
    tiers = Tiers(pool=16, page_size=16, events=True)
    tiers.cache.take_events()
    tiers.compute(A[:16])
    tiers.compute(B[:16])
    tiers.load(A[:16])
    kinds = [(type(e).__name__, e.medium) for e in tiers.cache.take_events()]
    assert kinds == [
        ("BlockStored", "GPU"),
        ("BlockStored", "CPU_PINNED"),
        ("BlockRemoved", "GPU"),
        ("BlockStored", "GPU"),
        ("BlockStored", "CPU_PINNED"),
        ("BlockRemoved", "GPU"),
        ("BlockStored", "GPU"),
    ]


@pytest.mark.parametrize("layout", ["layer_first", "page_first"])
def test_layouts_hold_the_same_pages(layout: str) -> None:
    tiers = Tiers(pool=32, page_size=4, hicache_mem_layout=layout)
    tiers.compute(A)
    tiers.check()
    pool = tiers.cache.host_pool
    page = torch.arange(pool.page_bytes, dtype=torch.uint8)
    slot = int(pool.alloc(4)[0])
    pool.set_from_flat_data_page(slot, page)
    assert torch.equal(pool.get_data_page(slot), page)
    assert pool.page_format == "page_size=4 dtype=int64 rows=32"


@pytest.mark.parametrize("width", [1, 2, 4, 6, 8, 24])
@pytest.mark.parametrize("layout", ["layer_first", "page_first"])
@pytest.mark.parametrize("pages", ["in a row", "in runs", "scattered"])
def test_copies_move_every_byte(width: int, layout: str, pages: str) -> None:
    """Rows of any width, wherever they lie."""
    generator = torch.Generator().manual_seed(width)
    kv = HashKV(63, 1)
    kv.values = torch.randint(0, 255, (64, width), dtype=torch.uint8, generator=generator)
    before = kv.values.clone()
    pool = HOST_POOLS[layout](kv, 63, 1)
    order = {
        "in a row": torch.arange(1, 41),
        "in runs": torch.cat([torch.arange(21, 41), torch.arange(1, 21)]),
        "scattered": torch.randperm(40, generator=generator) + 1,
    }[pages]
    pool.copy_from_device(order, order.flip(0) if pages == "scattered" else order + 5)
    kv.values.zero_()
    pool.copy_to_device(order.flip(0) if pages == "scattered" else order + 5, order + 10)
    assert torch.equal(kv.values[order + 10], before[order])
    assert not kv.values[:11].any() and not kv.values[51:].any()


# ------------------------------------------------------------------ random operations


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("layout", ["layer_first", "page_first"])
def test_random_operations_equal_a_naive_model(page_size: int, policy: str, layout: str) -> None:
    """The model knows which prefixes were ever computed; the cache may know less, never other."""
    rng = random.Random(f"{page_size} {policy} {layout}")
    block = {1: 5, 4: 8, 16: 16}[page_size]
    tiers = Tiers(
        pool=12 * block,
        page_size=page_size,
        hicache_ratio=rng.choice([0.75, 1.0, 2.0]),
        hicache_write_policy=policy,
        hicache_mem_layout=layout,
    )
    computed: set[tuple[str | None, tuple[int, ...]]] = set()
    locked = []
    for step in range(1500):
        # Few different blocks, so that prefixes are shared and nodes are split.
        blocks = [rng.randrange(3) for _ in range(rng.randrange(1, 7))]
        ids = [each * block + k for each in blocks for k in range(block)]
        ids = ids[: len(ids) - rng.choice([0, 0, 1, block - 1])]
        extra_key, hits = rng.choice([None, None, "k"]), rng.choice([1, 1, 3])
        match rng.randrange(10):
            case 0 | 1 | 2 | 3:
                chunked = rng.random() < 0.2
                if min(tiers.compute(ids, extra_key, chunked) for _ in range(hits)) >= 0:
                    ends = range(page_size, len(ids) + 1, page_size)
                    computed |= {(extra_key, tuple(ids[:end])) for end in ends}
            case 4 | 5:
                before = tiers.on_device(ids, extra_key), tiers.on_host(ids, extra_key)
                loaded = tiers.load(ids, extra_key, rng.choice([None, 3 * block]))
                assert loaded <= before[1]
                assert tiers.on_device(ids, extra_key) >= before[0]
            case 6:
                tiers.cache.evict(rng.randrange(8 * block))
            case 7:
                tiers.cache.evict_host(rng.randrange(6 * block))
            case 8 if len(locked) < 2:
                node = tiers.cache.match_prefix(RadixKey(ids, extra_key)).last_device_node
                tiers.cache.inc_lock_ref(node)
                locked.append(node)
            case 9 if locked:
                tiers.cache.dec_lock_ref(locked.pop(rng.randrange(len(locked))))
        found = tiers.on_device(ids, extra_key) + tiers.on_host(ids, extra_key)
        assert found == 0 or (extra_key, tuple(ids[:found])) in computed
        if step % 10 == 0:
            tiers.check()
    while locked:
        tiers.cache.dec_lock_ref(locked.pop())
    tiers.cache.evict(1 << 30)
    tiers.copy()
    tiers.cache.check_hicache_events()
    tiers.cache.evict_host(1 << 30)
    tiers.check()
    assert tiers.cache.root_node.children == {}
    assert tiers.cache.counters.num_loaded_back_tokens > 0
