"""What a prefill batch takes: budgets, order, chunks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from sglang.srt.core.config import ScheduleConfig
from sglang.srt.core.request import Req
from sglang.srt.core.sampling_params import SamplingParams
from sglang.srt.managers.batch_layout import take_in
from sglang.srt.managers.prefill import PrefillPlanner
from sglang.srt.managers.schedule_policy import SchedulePolicy
from sglang.srt.managers.waiting_queue import WaitingQueue
from sglang.srt.mem_cache.allocator import BaseTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import CacheInitParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixCache
from sglang.srt.mem_cache.radix_key import RadixKey
from sglang.srt.mem_cache.request_memory import RequestMemory
from tests.unit.srt.managers.engine import prompt_of


class Planning:
    """A planner with a pool and a queue."""

    def __init__(self, pool: int = 256, page_size: int = 1, **options: object) -> None:
        config = ScheduleConfig(**{"max_running_requests": 16, **options})  # type: ignore[arg-type]
        table = ReqToTokenPool(config.max_running_requests, 512, "cpu")
        allocator = BaseTokenToKVPoolAllocator(pool, page_size, torch.float32, "cpu", None)
        params = CacheInitParams(
            req_to_token_pool=table, token_to_kv_pool_allocator=allocator, page_size=page_size
        )
        tree = RadixCache(params)
        self.memory = RequestMemory(tree, table, allocator)
        self.planner = PrefillPlanner(config, self.memory, SchedulePolicy("fcfs", tree))
        self.waiting = WaitingQueue(None)
        self.running: list[Req] = []

    def wait(self, name: str, prompt: list[int], max_new_tokens: int = 1) -> Req:
        req = Req(name, prompt, SamplingParams(max_new_tokens=max_new_tokens))
        self.waiting.add(req)
        return req

    def run(self, prompt: list[int], max_new_tokens: int) -> None:
        """A request that is computed and decodes now."""
        req = self.wait("running", prompt, max_new_tokens)
        assert self.plan(0.0) == ["running"]
        self.memory.share_prompt(req)
        self.planner.joined(req)
        self.running.append(req)

    def plan(self, ratio: float = 1.0) -> list[str]:
        batch = self.planner.plan(self.waiting, self.running, ratio)
        if batch is None:
            return []
        take_in(batch)
        return [req.rid for req in batch.reqs]


def test_running_answers_are_expected_to_use_their_share() -> None:
    planning = Planning(pool=256)
    planning.run(prompt_of(56, 1), max_new_tokens=100)  # 200 free, 100 of them allowed
    planning.wait("new", prompt_of(150, 2))
    assert planning.plan(ratio=1.0) == []
    assert planning.plan(ratio=0.2) == ["new"]


def test_answer_and_a_page_are_reserved_for_a_new_request() -> None:
    for max_new_tokens, admitted in ((48, []), (47, ["new"])):
        planning = Planning(pool=256, page_size=16)
        planning.run(prompt_of(32, 1), max_new_tokens=1)  # 224 free
        planning.wait("new", prompt_of(150, 2), max_new_tokens)  # 160 + answer + 16
        assert planning.plan(ratio=0.0) == admitted


def test_alone_a_request_may_have_the_whole_pool() -> None:
    planning = Planning(pool=256)
    planning.wait("big", prompt_of(256), 1)
    assert planning.plan() == ["big"]


def test_request_that_does_not_fit_holds_back_those_behind_it() -> None:
    planning = Planning(pool=256)
    planning.run(prompt_of(100, 1), max_new_tokens=1)
    planning.wait("big", prompt_of(200, 2))
    planning.wait("small", prompt_of(5, 3))
    assert planning.plan() == []
    assert [req.rid for req in planning.waiting] == ["big", "small"]
    planning.memory.check_integrity(planning.running)


def test_prompts_beyond_the_input_budget_wait_for_the_next_batch() -> None:
    planning = Planning(max_prefill_tokens=100)
    for i, length in enumerate((120, 10, 60)):
        planning.wait(f"r{i}", prompt_of(length, i))
    assert planning.plan() == ["r0"]  # the first is taken whatever its length
    assert planning.plan() == ["r1", "r2"]


def test_batch_is_no_larger_than_the_running_limit_allows() -> None:
    planning = Planning(max_running_requests=3)
    planning.run(prompt_of(5, 9), max_new_tokens=1)
    for i in range(4):
        planning.wait(f"r{i}", prompt_of(5, i))
    assert planning.plan() == ["r0", "r1"]


def test_only_one_prompt_is_in_chunks() -> None:
    planning = Planning(chunked_prefill_size=32, page_size=16)
    first = planning.wait("first", prompt_of(80, 1))
    planning.wait("second", prompt_of(80, 2))
    assert planning.plan() == ["first"]
    planning.memory.share_prompt(first, chunked=True)
    assert planning.plan() == ["first"]
    planning.memory.share_prompt(first, chunked=True)
    assert planning.plan() == ["first", "second"]
    assert planning.planner.chunked is not None and planning.planner.chunked.rid == "second"
    assert first.kv_committed_len == 80


def test_prompt_that_the_batch_computes_anyway_waits_and_locks_nothing() -> None:
    planning = Planning(pool=256)
    shared = prompt_of(100, 1)
    planning.run(shared, max_new_tokens=1)
    planning.memory.release(planning.running.pop())  # 100 cached and evictable, 156 free
    planning.wait("first", [*shared, *prompt_of(40, 2)])
    planning.wait("same", [*shared, *prompt_of(40, 2), 1])
    planning.wait("other", prompt_of(90, 3))
    assert planning.plan() == ["first", "other"]
    assert [req.rid for req in planning.waiting] == ["same"]


def keys_and_comparisons(monkeypatch: pytest.MonkeyPatch, num_waiting: int) -> int:
    """How many keys are made and compared until so many prompts on one prefix are planned."""
    counts = 0

    def counting(method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            nonlocal counts
            counts += 1
            return method(*arguments)

        return counted

    planning = Planning(pool=8192, max_running_requests=num_waiting)
    prefix = prompt_of(64, 1)
    first, *_ = [planning.wait(f"r{i}", [*prefix, i, i]) for i in range(num_waiting)]
    with monkeypatch.context() as patch:
        for name in ("__init__", "match_len"):
            patch.setattr(RadixKey, name, counting(getattr(RadixKey, name)))
        assert planning.plan(ratio=0.0) == ["r0"]
        planning.memory.share_prompt(first)
        planning.planner.joined(first)
        assert len(planning.plan(ratio=0.0)) == num_waiting - 1
    return counts


def test_work_is_linear_in_the_number_of_prompts_on_one_prefix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few, many = (keys_and_comparisons(monkeypatch, count) for count in (100, 500))
    assert many < 5.5 * few
    assert many < 500 * 40


def test_retracted_requests_come_before_those_that_never_ran() -> None:
    queue = WaitingQueue(limit=2)
    new = [Req(rid, [1], SamplingParams()) for rid in ("new-1", "new-2")]
    for req in new:
        queue.add(req)
    retracted = [Req(rid, [1], SamplingParams()) for rid in ("old-1", "old-2")]
    queue.put_back(retracted)
    assert list(queue) == [*retracted, *new]
    assert not queue.has_room_beside(0)
