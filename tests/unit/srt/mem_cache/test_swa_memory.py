"""Two pools: every token stands in both until it falls out of the window."""

from types import SimpleNamespace

import pytest
import torch

from sglang.kernels.kv_store import store_kv_torch
from sglang.srt.core.config import ScheduleConfig
from sglang.srt.core.request import Req
from sglang.srt.core.sampling_params import SamplingParams
from sglang.srt.managers.decode import RunningBatch
from sglang.srt.managers.new_token_ratio import NewTokenRatio
from sglang.srt.managers.prefill import PrefillPlanner
from sglang.srt.managers.schedule_policy import SchedulePolicy
from sglang.srt.managers.waiting_queue import WaitingQueue
from sglang.srt.mem_cache.base_prefix_cache import CacheInitParams
from sglang.srt.mem_cache.chunk_cache import ChunkCache
from sglang.srt.mem_cache.memory_pool import KVDims, Memory, PoolSizes, build_memory
from sglang.srt.mem_cache.request_memory import RequestMemory
from sglang.srt.mem_cache.swa_memory import SWAKVPool, SWATokenToKVPoolAllocator

WINDOW = 8


def memory(num_tokens: int = 256, page_size: int = 1, share: float = 0.5) -> Memory:
    dims = KVDims(
        4, 2, 4, torch.float32, window_layers=frozenset((0, 2)), window_len=WINDOW,
        window_share=share,
    )  # fmt: skip
    return build_memory(dims, PoolSizes(num_tokens, page_size, 4, 256), "cpu")


def parts(built: Memory) -> tuple[SWATokenToKVPoolAllocator, SWAKVPool]:
    allocator, pool = built.token_to_kv_pool_allocator, built.token_to_kv_pool
    assert isinstance(allocator, SWATokenToKVPoolAllocator) and isinstance(pool, SWAKVPool)
    return allocator, pool


def grown(built: Memory, length: int) -> Req:
    """A request of so many tokens, computed token by token."""
    req = Req("r", [1], SamplingParams())
    built.req_to_token_pool.alloc([req])
    last = -1
    for position in range(length):
        built.token_to_kv_pool_allocator.trim([req], built.req_to_token_pool)
        slots = built.token_to_kv_pool_allocator.alloc_extend([position], [position + 1], [last])
        assert slots is not None
        built.req_to_token_pool.write((req.req_pool_idx, slice(position, position + 1)), slots)
        last, req.kv_committed_len = int(slots[0]), position + 1
    return req


def test_cell_counts_a_window_layer_by_its_share() -> None:
    _, pool = parts(memory())
    assert pool.dims.cell_bytes == 2 * 2 * 4 * 4 * 2 + 2 * 2 * 4 * 4
    assert pool.full_kv_pool.get_kv_size_bytes() == 257 * 128
    assert pool.swa_kv_pool.get_kv_size_bytes() == 129 * 128
    assert pool.get_kv_size_bytes() == (257 + 129) * 128
    assert "(2 + 2 x 0.5) layers" in pool.dims.arithmetic()


def test_less_room_counts() -> None:
    allocator, _ = parts(memory(share=0.5))
    assert (allocator.full_available_size(), allocator.swa_available_size()) == (256, 128)
    assert allocator.available_size() == 128
    assert allocator.alloc(129) is None
    assert allocator.full_available_size() == 256


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_long_request_keeps_its_window_and_little_more(page_size: int) -> None:
    built = memory(page_size=page_size)
    allocator, pool = parts(built)
    req = grown(built, 200)
    assert allocator.full_available_size() == 256 - -(-200 // page_size) * page_size
    assert WINDOW <= allocator.num_window_tokens() <= WINDOW + 2 * page_size + 32
    allocator.check_window([req])
    live = built.req_to_token_pool.slots(req, 200 - WINDOW, 200)
    in_window = pool.translate_loc_from_full_to_swa(live)
    assert len(in_window.unique()) == WINDOW and int(in_window.min()) >= page_size


def test_freed_request_gives_both_pools_back() -> None:
    built = memory(page_size=4)
    allocator, _ = parts(built)
    req = grown(built, 100)
    allocator.free(built.req_to_token_pool.slots(req, 0, 100))
    assert (allocator.full_available_size(), allocator.swa_available_size()) == (256, 128)
    allocator.merge_and_sort_free()


def test_window_pool_that_lost_a_page_is_found() -> None:
    built = memory()
    allocator, _ = parts(built)
    req = grown(built, 60)
    req.window_start -= 1
    with pytest.raises(RuntimeError, match="window pool of 128 tokens does not add up"):
        allocator.check_window([req])


def test_place_that_was_given_up_is_still_found_by_a_pass_under_way() -> None:
    allocator, pool = parts(memory())
    slots = allocator.alloc(4)
    assert slots is not None
    before = pool.translate_loc_from_full_to_swa(slots)
    allocator.free_swa(slots)
    assert torch.equal(pool.translate_loc_from_full_to_swa(slots), before)


@pytest.mark.parametrize("num_pending", [1, 5])
def test_what_a_pass_under_way_reads_is_not_given_up(num_pending: int) -> None:
    built = memory()
    allocator, _ = parts(built)
    req = grown(built, 32 + WINDOW - 1)
    req.kv_pending_len = num_pending
    allocator.trim([req], built.req_to_token_pool)
    assert req.window_start <= req.kv_valid_len - WINDOW + 1
    req.kv_pending_len = 0
    allocator.trim([req], built.req_to_token_pool)
    assert req.window_start == 32
    allocator.check_window([req])


def request_memory(built: Memory) -> RequestMemory:
    params = CacheInitParams(
        req_to_token_pool=built.req_to_token_pool,
        token_to_kv_pool_allocator=built.token_to_kv_pool_allocator,
        page_size=1,
    )
    return RequestMemory(
        ChunkCache(params), built.req_to_token_pool, built.token_to_kv_pool_allocator
    )


def test_nobody_is_retracted_where_trimming_makes_room() -> None:
    built = memory(100, share=0.4)
    allocator, _ = parts(built)
    req = grown(built, 32 + WINDOW - 1)
    assert allocator.alloc(1) is not None and allocator.available_size() == 0
    running = RunningBatch(request_memory(built), NewTokenRatio(1.0))
    running.add(req)
    plan = running.plan(others_hold_memory=True)
    assert plan.retracted == [] and plan.batch is not None
    assert allocator.swa_available_size() == 31


def test_prompt_in_chunks_goes_on_in_a_window_pool_that_it_has_filled() -> None:
    built = memory(200, share=0.3)
    config = ScheduleConfig(max_running_requests=4, chunked_prefill_size=50)
    room = request_memory(built)
    policy = SchedulePolicy("fcfs", room.tree_cache)
    planner = PrefillPlanner(config, room, policy)
    waiting = WaitingQueue(None)
    req = Req("r", list(range(150)), SamplingParams())
    waiting.add(req)
    lens = []
    for _ in range(9):
        if (batch := planner.plan(waiting, [], 0.5)) is None:
            break
        lens.append(batch.extend_seq_lens[0])
        req.kv_pending_len = 0
    assert sum(lens) == 150
    parts(built)[0].check_window([req])


def test_state_can_be_restored() -> None:
    allocator, _ = parts(memory(page_size=4))
    slots = allocator.alloc(16)
    assert slots is not None
    state = allocator.backup_state()
    allocator.alloc(32)
    allocator.free_swa(slots)
    allocator.restore_state(state)
    assert (allocator.full_available_size(), allocator.swa_available_size()) == (240, 112)
    assert allocator.num_window_tokens() == 16


def test_copies_on_the_host_come_back_layer_by_layer() -> None:
    allocator, pool = parts(memory())
    old, new = allocator.alloc(3), allocator.alloc(3)
    assert old is not None and new is not None
    for layer in range(4):
        k = torch.rand(3, 2, 4)
        pool.set_kv_buffer(SimpleNamespace(layer_id=layer), old, k, -k)
    allocator.load_cpu_copy(allocator.get_cpu_copy(old), new)
    for layer in range(4):
        places = (old, new)
        if pool.is_window_layer(layer):
            places = tuple(pool.translate_loc_from_full_to_swa(slots) for slots in places)
        keys, values = pool.get_kv_buffer(layer)
        assert torch.equal(keys[places[0]], keys[places[1]]) and keys[places[0]].any()
        assert torch.equal(values[places[1]], -keys[places[1]])


@pytest.mark.parametrize("page_size", [1, 4])
def test_page_is_copied_in_both_pools(page_size: int) -> None:
    allocator, pool = parts(memory(page_size=page_size))
    slots = allocator.alloc(2 * page_size)
    assert slots is not None
    for layer in range(4):
        k = torch.rand(2 * page_size, 2, 4)
        pool.set_kv_buffer(SimpleNamespace(layer_id=layer), slots, k, -k)
    source, target = (slots[::page_size] // page_size).split(1)
    pool.copy_pages(target, source)
    copied = allocator.get_cpu_copy(slots)
    for buffers in copied:
        assert all(torch.equal(*buffer.chunk(2)) and buffer.any() for buffer in buffers)


def test_plain_torch_can_store_in_both_pools() -> None:
    _, pool = parts(memory())
    pool.store_by_torch()
    stores = [pool.full_kv_pool._store_kv, pool.swa_kv_pool._store_kv]
    assert stores == [store_kv_torch, store_kv_torch]
