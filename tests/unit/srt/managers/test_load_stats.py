"""The scheduler's counters and times, compared with what a bystander counts."""

import logging

import pytest
import torch

from sglang.srt.constrained.grammar_manager import GrammarCounters
from sglang.srt.core.messages import (
    AbortInput,
    ControlInput,
    LoadSnapshot,
    RequestTimes,
    StepOutput,
)
from sglang.srt.managers.load_stats import LoadStats
from sglang.srt.mem_cache.base_prefix_cache import CacheInitParams
from sglang.srt.mem_cache.chunk_cache import ChunkCache
from sglang.srt.mem_cache.memory_pool import KVDims, ReqToTokenPool
from sglang.srt.mem_cache.request_memory import RequestMemory
from sglang.srt.mem_cache.swa_memory import SWAKVPool, SWATokenToKVPoolAllocator
from tests.unit.srt.managers.engine import Cache, Engine, generate, prompt_of
from tests.unit.srt.managers.test_grammar import Backend, CountingGrammar


class Clocked(Engine):
    """An engine on which every pass takes a second."""

    def step(self) -> bool:
        run_batch = self.scheduler.run_batch

        def slow(batch):  # type: ignore[no-untyped-def]
            result = run_batch(batch)
            self.now += 1.0
            return result

        self.scheduler.run_batch = slow  # type: ignore[method-assign]
        try:
            return super().step()
        finally:
            self.scheduler.run_batch = run_batch  # type: ignore[method-assign]


def last_load(engine: Engine) -> LoadSnapshot:
    return [sent for sent in engine.outbox.sent if isinstance(sent, StepOutput)][-1].load


def times_of(engine: Engine, rid: str) -> RequestTimes:
    times = engine.outbox.answers[rid].last.times
    assert times is not None
    return times


def test_counts_are_those_of_the_answers_and_the_batches() -> None:
    engine = Engine(chunked_prefill_size=16)
    shared = prompt_of(40)
    for i in range(4):
        engine.run(generate(f"r{i}", [*shared, *prompt_of(10 + i, seed=i + 5)], 6))
    answers, load = engine.outbox.answers.values(), last_load(engine)
    extends = [batch for batch in engine.model.batches if batch.forward_mode.is_extend()]
    decodes = [batch for batch in engine.model.batches if batch.forward_mode.is_decode()]
    assert load.num_requests_total == len(answers) == 4
    assert load.prompt_tokens_total == sum(answer.last.prompt_tokens for answer in answers)
    assert load.generation_tokens_total == sum(len(answer.token_ids) for answer in answers)
    assert load.cached_tokens_total == sum(answer.last.cached_tokens for answer in answers) >= 120
    computed = sum(sum(batch.extend_seq_lens) for batch in extends)
    assert load.prefill_compute_tokens_total == computed
    assert load.decode_tokens_total == sum(batch.batch_size for batch in decodes)
    assert load.prompt_tokens_total == (
        load.prefill_compute_tokens_total + load.prefill_cache_tokens_total
    )


def test_a_mixed_pass_counts_each_request_for_what_it_does() -> None:
    engine = Engine(mixed_chunk=True, chunked_prefill_size=16)
    engine.send(generate("old", prompt_of(20), 20))
    for _ in range(4):
        engine.step()
    engine.run(generate("new", prompt_of(40, seed=1), 5))
    mixed = [batch for batch in engine.model.batches if batch.forward_mode.is_mixed()]
    assert mixed
    load = last_load(engine)
    assert load.prefill_compute_tokens_total == load.prompt_tokens_total == 60
    assert load.decode_tokens_total == load.generation_tokens_total - 2
    assert sum(tokens for _, tokens in times_of(engine, "new").chunks) == 40


def test_a_pause_is_counted() -> None:
    engine = Engine()
    engine.send(*(generate(f"r{i}", prompt_of(20, seed=i), 10) for i in range(3)))
    for _ in range(3):
        engine.step()
    engine.send(ControlInput(id=1, name="pause_generation", args={"mode": "retract"}))
    paused = last_load(engine)
    assert (paused.num_paused_reqs, paused.num_retracted_reqs) == (3, 3)
    assert paused.num_retracted_requests_total == 3
    engine.send(ControlInput(id=2, name="continue_generation"))
    engine.run()
    assert last_load(engine).num_paused_reqs == 0
    for rid in ("r0", "r1", "r2"):
        times = times_of(engine, rid)
        assert (len(times.admissions), len(times.retractions)) == (2, 1)


def test_a_window_pool_is_counted() -> None:
    dims = KVDims(
        num_layers=2, num_kv_heads=1, head_dim=2, dtype=torch.float32,
        window_layers=frozenset([1]), window_len=8,
    )  # fmt: skip
    table = ReqToTokenPool(4, 64, "cpu")
    allocator = SWATokenToKVPoolAllocator(64, 32, 1, SWAKVPool(64, 32, 1, dims, "cpu"))
    params = CacheInitParams(
        disable=True, req_to_token_pool=table, token_to_kv_pool_allocator=allocator
    )
    memory = RequestMemory(ChunkCache(params), table, allocator)
    stats = LoadStats(memory, GrammarCounters(), clock=lambda: 0.0)
    assert allocator.alloc(12) is not None
    load = stats.snapshot()
    assert (load.swa_used_tokens, load.swa_total_tokens) == (12, 32)
    assert load.num_used_tokens == 12 and load.max_total_num_tokens == 64


@pytest.mark.loop("plain")
def test_every_stage_has_its_moment() -> None:
    engine = Clocked(chunked_prefill_size=16)
    engine.now = 100.0
    engine.send(generate("r", prompt_of(40), 3))
    engine.now += 2.0
    engine.run()
    times = times_of(engine, "r")
    assert times.received == 100.0
    assert times.admissions == [102.0]
    assert times.chunks == [(103.0, 16), (104.0, 16), (105.0, 8)]
    assert times.prefilled == 105.0
    assert times.finished == 107.0
    assert times.compiled is None and times.retractions == []


def test_retractions_are_counted_timed_and_computed_again() -> None:
    engine = Clocked(pool=60, schedule_conservativeness=0.01)
    engine.run(*(generate(f"r{i}", prompt_of(10, seed=i), 20) for i in range(3)))
    load = last_load(engine)
    outputs = [answer.last for answer in engine.outbox.answers.values()]
    total = sum(output.num_retractions for output in outputs)
    assert load.num_retracted_requests_total == total > 0
    assert load.prompt_tokens_total == 30
    again = load.prefill_compute_tokens_total + load.prefill_cache_tokens_total
    assert again > 30, "a retracted prompt and its answer are computed again"
    for output in outputs:
        assert output.times is not None
        assert len(output.times.retractions) == output.num_retractions
        assert len(output.times.admissions) == output.num_retractions + 1
    seen = [s.load.num_retracted_reqs for s in engine.outbox.sent if isinstance(s, StepOutput)]
    assert max(seen) > 0 == seen[-1]


@pytest.mark.loop("plain")
def test_gauges_say_who_holds_what() -> None:
    engine = Clocked(pool=200, max_running_requests=3)
    engine.send(*(generate(f"r{i}", prompt_of(20, seed=i), 10) for i in range(5)))
    for _ in range(3):
        engine.step()
    load = last_load(engine)
    assert (load.num_running_reqs, load.num_waiting_reqs, load.utilization) == (3, 2, 1.0)
    assert load.num_waiting_uncached_tokens == 2 * 20
    # Three prompts, and the KV of all tokens but the last one of each answer.
    news = [len(engine.outbox.answers[f"r{i}"].token_ids) for i in range(3)]
    assert load.num_used_tokens == sum(20 + tokens - 1 for tokens in news)
    assert load.token_usage == load.num_used_tokens / 200
    assert load.num_free_tokens == engine.memory.allocator.available_size()
    assert load.num_evictable_tokens == 200 - load.num_used_tokens - load.num_free_tokens
    assert load.gen_throughput == 3.0, "three requests, a token a second each"
    assert load.new_token_ratio == engine.scheduler.ratio.value
    engine.run()
    load = last_load(engine)
    assert (load.num_running_reqs, load.num_waiting_reqs, load.gen_throughput) == (0, 0, 0.0)
    assert load.num_used_tokens == 0
    assert load.num_free_tokens + load.num_evictable_tokens == 200


@pytest.mark.loop("plain")
def test_a_host_tier_is_counted() -> None:
    engine = Clocked(pool=64, cache=Cache(hicache_ratio=3.0))
    for i in (0, 1, 2, 0):
        engine.run(generate(f"r{i}-{len(engine.outbox.answers)}", prompt_of(40, seed=i), 4))
    load, again = last_load(engine), engine.outbox.answers["r0-3"].last
    assert again.cached_tokens_details is not None
    assert again.cached_tokens_details["host"] > 0
    assert load.cached_host_tokens_total == again.cached_tokens_details["host"]
    assert load.cached_tokens_total == again.cached_tokens
    assert load.load_back_tokens_total == load.cached_host_tokens_total
    assert load.cached_storage_tokens_total == load.prefetched_tokens_total == 0
    # Three prompts with their answers, the last token of each never being written.
    assert load.backuped_tokens_total == load.host_used_tokens == 3 * 43
    assert load.host_total_tokens == 192
    seconds = [
        each
        for sent in engine.outbox.sent
        if isinstance(sent, StepOutput)
        for each in sent.durations.get("load_back", [])
    ]
    assert len(seconds) == 1 and seconds[0] >= 0


def test_refused_and_aborted_requests_are_counted_once() -> None:
    engine = Engine(pool=64)
    engine.send(generate("long", prompt_of(80), 4), generate("gone", prompt_of(8), 50))
    engine.step()
    engine.send(AbortInput(rids=["gone"]))
    engine.run()
    assert last_load(engine).num_aborted_requests_total == 2
    assert last_load(engine).num_requests_total == 2
    assert engine.outbox.answers["long"].last.times is None
    assert times_of(engine, "gone").prefilled is not None


def test_evictions_are_counted_and_timed() -> None:
    engine = Engine(pool=64)
    ticks = iter(range(10_000))
    engine.memory._clock = lambda: float(next(ticks))
    for i in range(6):
        engine.run(generate(f"r{i}", prompt_of(30, seed=i), 4))
    steps = [sent for sent in engine.outbox.sent if isinstance(sent, StepOutput)]
    seconds = [each for step in steps for each in step.durations.get("eviction", [])]
    assert seconds and all(each == 1.0 for each in seconds)
    kept = 64 - engine.memory.allocator.available_size()
    computed = steps[-1].load.prefill_compute_tokens_total + steps[-1].load.decode_tokens_total
    assert steps[-1].load.evicted_tokens_total == computed - kept > 0


@pytest.mark.loop("plain")
def test_decode_steps_are_logged_at_their_interval(caplog: pytest.LogCaptureFixture) -> None:
    engine = Clocked(decode_log_interval=4)
    with caplog.at_level(logging.INFO, "sglang.srt.managers.load_stats"):
        engine.run(generate("r", prompt_of(8), 14))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    # The first window has the prefill pass too: five tokens in five seconds.
    assert lines[0] == "decode: 1 running, 12 tokens (usage 0.00), 1.0 tokens/s, 0 waiting"


def test_no_interval_logs_no_steps(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        Engine(decode_log_interval=0).run(generate("r", prompt_of(8), 50))
    assert not [r for r in caplog.records if r.name.endswith("load_stats")]


@pytest.mark.loop("plain")
def test_constraints_are_counted_and_their_compilation_is_timed() -> None:
    backend = Backend()
    engine = Clocked(grammar_backend=backend)
    engine.send(generate("slow", prompt_of(5), 10, regex="slow"), generate("b", prompt_of(9), 4))
    engine.step()
    assert last_load(engine).num_grammar_queue_reqs == 1
    engine.step()
    backend.slow.set_result(CountingGrammar(2))
    engine.run()
    times = times_of(engine, "slow")
    assert times.received == 0.0 and times.compiled == 2.0
    engine.run(generate("known", prompt_of(5), 10, regex="slow"))
    steps = [sent for sent in engine.outbox.sent if isinstance(sent, StepOutput)]
    assert [s for step in steps for s in step.durations.get("grammar", [])] == [2.0]
    load = steps[-1].load
    assert (load.num_so_requests_total, load.num_grammar_total) == (2, 2)
    assert load.num_grammar_cache_hit_total == 1
    assert (load.num_grammars_cached, load.grammar_cache_bytes) == (1, backend.cached_bytes)
    assert load.grammar_cache_bytes > 0
    assert load.num_grammar_queue_reqs == 0


def test_parked_requests_that_end_are_counted_as_such() -> None:
    engine = Engine(grammar_backend=Backend())
    engine.send(generate("slow", prompt_of(5), 10, regex="slow"))
    engine.now = 3.0
    engine.send(AbortInput(rids=["slow"]))
    engine.run()
    assert last_load(engine).num_grammar_aborted_total == 1
    assert times_of(engine, "slow").compiled == 3.0


def test_compilations_that_are_given_up_are_counted() -> None:
    backend = Backend()
    backend.slow.set_running_or_notify_cancel()
    engine = Engine(grammar_backend=backend)
    engine.send(generate("slow", prompt_of(5), 10, regex="slow"))
    engine.step()
    engine.now = 21.0
    engine.run()
    assert last_load(engine).num_grammar_timeout_total == 1
