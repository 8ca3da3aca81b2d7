"""The running batch makes room by retracting, and gives up only when nothing is left to retract."""

import pytest
import torch

from sglang.srt.core.request import Req, RequestState
from sglang.srt.core.sampling_params import SamplingParams
from sglang.srt.managers.decode import RunningBatch
from sglang.srt.managers.new_token_ratio import NewTokenRatio
from sglang.srt.mem_cache.allocator import BaseTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import CacheInitParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixCache
from sglang.srt.mem_cache.request_memory import RequestMemory


def memory_of(num_tokens: int, page_size: int = 1) -> RequestMemory:
    table = ReqToTokenPool(8, 256, "cpu")
    allocator = BaseTokenToKVPoolAllocator(num_tokens, page_size, torch.float32, "cpu", None)
    params = CacheInitParams(
        req_to_token_pool=table, token_to_kv_pool_allocator=allocator, page_size=page_size
    )
    return RequestMemory(RadixCache(params), table, allocator)


def run_in(batch: RunningBatch, memory: RequestMemory, prompt: list[int], outputs: int) -> Req:
    """A request whose prompt and all outputs but the last stand in the pool."""
    req = Req(f"{prompt}", prompt, SamplingParams(max_new_tokens=100))
    req.output_ids = [0] * outputs
    memory.attach_prefix(req)
    memory.extend([req], [len(prompt) + outputs - 1])
    req.state = RequestState.RUNNING
    batch.add(req)
    return req


def test_everybody_gets_a_slot_while_there_is_room() -> None:
    memory = memory_of(8)
    batch = RunningBatch(memory, NewTokenRatio(1.0))
    reqs = [run_in(batch, memory, [1, 2], 1), run_in(batch, memory, [3, 4], 1)]
    plan = batch.plan(others_hold_memory=False)
    assert plan.batch is not None
    assert plan.batch.reqs == reqs
    assert plan.batch.out_cache_loc.tolist() == [5, 6]
    assert [req.kv_committed_len for req in reqs] == [3, 3]


def test_fewest_outputs_and_then_longest_prompt_leaves_first() -> None:
    memory = memory_of(14)
    batch = RunningBatch(memory, NewTokenRatio(1.0))
    far = run_in(batch, memory, [1, 2], 4)
    short = run_in(batch, memory, [3, 4], 2)
    long = run_in(batch, memory, [5, 6, 7, 8, 9], 2)
    plan = batch.plan(others_hold_memory=False)
    assert plan.retracted == [long]
    assert plan.batch is not None and plan.batch.reqs == [far, short]
    assert (long.num_retractions, long.req_pool_idx, long.output_ids) == (1, None, [0, 0])
    memory.check_integrity([far, short])


def test_page_needs_are_counted_in_pages() -> None:
    memory = memory_of(32, page_size=8)
    batch = RunningBatch(memory, NewTokenRatio(1.0))
    for i in range(3):  # each fills a page; one page is left, so two have to go
        run_in(batch, memory, [10 * i + j for j in range(8)], 1)
    plan = batch.plan(others_hold_memory=False)
    assert len(plan.retracted) == 1
    assert len(batch.reqs) == 2


def test_cached_prefixes_are_evicted_before_anybody_is_retracted() -> None:
    memory = memory_of(6)
    batch = RunningBatch(memory, NewTokenRatio(1.0))
    done = run_in(batch, memory, [1, 2, 3], 1)
    batch.remove(done)
    memory.release(done)
    req = run_in(batch, memory, [4, 5, 6], 1)
    plan = batch.plan(others_hold_memory=False)
    assert plan.retracted == []
    assert req.kv_committed_len == 4


def test_last_request_that_outgrows_the_pool_is_out_of_memory() -> None:
    memory = memory_of(4)
    batch = RunningBatch(memory, NewTokenRatio(1.0))
    req = run_in(batch, memory, [1, 2, 3, 4], 1)
    plan = batch.plan(others_hold_memory=False)
    assert (plan.out_of_memory, plan.batch, plan.retracted) == (req, None, [])


def test_last_request_waits_for_others_that_hold_memory() -> None:
    memory = memory_of(4)
    batch = RunningBatch(memory, NewTokenRatio(1.0))
    other = run_in(batch, memory, [1, 2], 1)
    batch.remove(other)
    req = run_in(batch, memory, [3, 4], 1)
    plan = batch.plan(others_hold_memory=True)
    assert (plan.out_of_memory, plan.batch, plan.retracted) == (None, None, [req])


def test_ratio_decays_to_its_floor_and_rises_after_a_retraction() -> None:
    ratio = NewTokenRatio(1.0)
    assert ratio.value == pytest.approx(0.7)
    for _ in range(700):
        ratio.decay()
    assert ratio.value == pytest.approx(0.7 * 0.14)
    req = Req("a", [1], SamplingParams(max_new_tokens=99))
    req.output_ids = [0] * 30
    ratio.raise_after_retraction([req])
    assert ratio.value == pytest.approx((30 + 20) / 100)
    ratio.reset()
    assert ratio.value == pytest.approx(0.7)


def test_ratio_never_exceeds_one() -> None:
    assert NewTokenRatio(5.0).value == 1.0
