"""Faults that users of such engines reported, by the reports' ids; the others are beside their
module: B106, B124, B128 in `test_scheduler`, B130 with the logprobs, B172 with the GGUF weights.
"""

import random

import pytest

from sglang.srt.core.messages import AbortInput
from sglang.srt.entrypoints import grpc_convert, wire
from tests.unit.srt.managers.engine import VOCAB, Engine, generate, prompt_of, reference


def assert_whole(engine: Engine) -> None:
    """free + evictable + protected = total, and nobody protects anything."""
    tree, free = engine.memory.tree_cache, engine.memory.allocator.available_size()
    assert engine.scheduler.is_idle
    assert tree.protected_size() == 0
    assert free + tree.evictable_size() == engine.memory.size


def test_b101_pages_add_up_at_every_idle_moment() -> None:
    rng = random.Random(6888)
    engine = Engine(pool=1024, page_size=16)
    shared = prompt_of(48, 1)
    for moment in range(20):
        for i in range(10):  # 200 requests, some of which are aborted on their way
            length = rng.choice([15, 16, 17, 31, 32, 33])
            own = prompt_of(length, 2 + 10 * moment + i)
            prompt = rng.choice([own, shared[:length], shared[: length // 2] + own])
            engine.send(generate(f"{moment}-{i}", prompt, rng.choice([1, 15, 16, 17, 33])))
            if rng.random() < 0.5:
                engine.step()
            if rng.random() < 0.3:
                engine.send(AbortInput(rids=[f"{moment}-{rng.randrange(i + 1)}"]))
        engine.run()
        assert_whole(engine)
    finishes = [answer.finish for answer in engine.outbox.answers.values()]
    assert len(finishes) == 200
    assert {finish.type for finish in finishes if finish is not None} == {"length", "abort"}


def test_b105_retracting_unaligned_requests_loses_no_part_of_a_page() -> None:
    # About 3 of the 8 requests fit at their full length, which is no multiple of 16.
    engine = Engine(pool=3 * 208, page_size=16, schedule_conservativeness=0.01)
    prompts = {f"r{i}": prompt_of(41 + 3 * i, i) for i in range(8)}
    answers = engine.run(*(generate(rid, prompt, 139) for rid, prompt in prompts.items()))
    assert all(answers[rid].token_ids == reference(prompts[rid], 139) for rid in prompts)
    assert sum(answer.last.num_retractions for answer in answers.values()) > 0
    assert_whole(engine)


def test_b108_room_is_counted_in_pages() -> None:
    # Requests fill a page each, and all that run need a second one in the same step: with more
    # than half as many as there are pages they do not fit. In tokens there would be room.
    engine = Engine(
        pool=64 * 190, page_size=64, max_running_requests=150, schedule_conservativeness=0.001
    )
    prompts = {f"r{i}": prompt_of(64, i) for i in range(150)}
    engine.send(*(generate(rid, prompt, 3) for rid, prompt in prompts.items()))
    most_running = 0
    while engine.step():
        most_running = max(most_running, len(engine.scheduler.running.reqs))
    assert most_running >= 190 // 2
    answers = engine.outbox.answers
    assert sum(answer.last.num_retractions for answer in answers.values()) > 0
    assert all(answers[rid].token_ids == reference(prompts[rid], 3) for rid in prompts)
    assert_whole(engine)


def test_b111_usage_stays_flat_and_the_last_request_is_as_fast_as_the_first() -> None:
    engine = Engine(pool=1024, page_size=16)
    steps = []
    for i in range(500):
        before = len(engine.model.batches)
        answer = engine.ask([*prompt_of(30, i), i // (VOCAB - 1)], 3)
        assert answer.finish is not None and answer.finish.type == "length"
        steps.append(len(engine.model.batches) - before)
        if i % 50 == 49:
            assert engine.used() == 0
    assert set(steps) == {3}


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("length", [126, 127])
@pytest.mark.parametrize("max_new_tokens", [1, 5, None])
def test_b140_prompts_near_the_context_end(
    page_size: int, warm: bool, length: int, max_new_tokens: int | None
) -> None:
    engine = Engine(context=128, page_size=page_size)
    prompt = prompt_of(length)
    if warm:
        engine.ask(prompt, 1)
    answer = engine.ask(prompt, max_new_tokens)
    assert answer.finish is not None
    if max_new_tokens is not None and length + max_new_tokens > 128:
        assert (answer.finish.type, answer.finish.status_code) == ("abort", 400)
        assert "Requested token count exceeds" in str(answer.finish.message)
    else:
        assert answer.finish.type == "length"
        assert answer.token_ids == reference(prompt, max_new_tokens or 128 - length)
    assert_whole(engine)


@pytest.mark.parametrize("length", [128, 129])
def test_b140_prompts_as_long_as_the_context_never_reach_the_scheduler(length: int) -> None:
    request = wire.scheduler("GenerateRequest")(request_id="a")
    request.tokenized.input_ids.extend(prompt_of(length))
    with pytest.raises(grpc_convert.InvalidRequest, match=rf"\({length} tokens\).*\(128 tokens\)"):
        grpc_convert.generate_inputs(request, vocab_size=VOCAB, context_len=128, deadline=None)
