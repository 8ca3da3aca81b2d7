"""Answers do not depend on how they were scheduled, and no page is ever lost."""

import pytest

from sglang.srt.core.messages import StepOutput
from tests.unit.srt.managers.engine import (
    EOS,
    VOCAB,
    Engine,
    generate,
    prompt_of,
    reference,
    reference_logprob,
)

PAGE_SIZES = pytest.mark.parametrize("page_size", [1, 16, 64])


# ------------------------------------------------------------------ one answer, many ways


@PAGE_SIZES
@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33, 200])
def test_cold_and_warm_answers_equal_the_reference(page_size: int, length: int) -> None:
    engine = Engine(page_size=page_size)
    prompt = prompt_of(length)
    expected = reference(prompt, 20)
    assert engine.ask(prompt, 20).token_ids == expected
    assert engine.ask(prompt, 20).token_ids == expected


@PAGE_SIZES
def test_warm_request_reuses_whole_pages_but_not_its_last_token(page_size: int) -> None:
    engine = Engine(page_size=page_size)
    prompt = prompt_of(128)
    assert engine.ask(prompt, 4).last.cached_tokens == 0
    assert engine.ask(prompt, 4).last.cached_tokens == 127 // page_size * page_size


def test_next_turn_reuses_the_answer_by_ids() -> None:
    engine = Engine()
    prompt = prompt_of(40)
    answer = engine.ask(prompt, 10).token_ids
    longer = [*prompt, *answer, *prompt_of(5, seed=3)]
    second = engine.ask(longer, 10)
    assert second.last.cached_tokens == 49  # the last answer token was never computed upon
    assert second.token_ids == reference(longer, 10)


def test_next_turn_with_other_ids_hits_up_to_where_they_agree() -> None:
    engine = Engine()
    prompt = prompt_of(40)
    answer = engine.ask(prompt, 10).token_ids
    changed = [*prompt, *answer[:4], (answer[4] + 1) % EOS, *answer[5:]]
    second = engine.ask(changed, 10)
    assert second.last.cached_tokens == 44
    assert second.token_ids == reference(changed, 10)


@PAGE_SIZES
def test_chunked_prompt_equals_whole_prompt(page_size: int) -> None:
    engine = Engine(page_size=page_size, chunked_prefill_size=64)
    prompt = prompt_of(300)
    assert engine.ask(prompt, 12).token_ids == reference(prompt, 12)
    lengths = [sum(batch.extend_seq_lens) for batch in engine.model.batches[:5]]
    assert lengths == [64, 64, 64, 64, 44]


def test_other_prompts_fill_the_rest_of_the_last_chunk() -> None:
    engine = Engine(chunked_prefill_size=64)
    long, short = prompt_of(100, 1), prompt_of(20, 2)
    answers = engine.run(generate("long", long), generate("short", short))
    assert [req.rid for req in engine.model.batches[1].reqs] == ["long", "short"]
    assert answers["long"].token_ids == reference(long, 8)
    assert answers["short"].token_ids == reference(short, 8)


@PAGE_SIZES
@pytest.mark.parametrize("disable_radix_cache", [False, True])
def test_batched_answers_equal_single_ones(page_size: int, disable_radix_cache: bool) -> None:
    engine = Engine(page_size=page_size, disable_radix_cache=disable_radix_cache)
    prompts = {f"r{i}": prompt_of(10 + 7 * i, i) for i in range(20)}
    answers = engine.run(*(generate(rid, prompt, 15) for rid, prompt in prompts.items()))
    for rid, prompt in prompts.items():
        assert answers[rid].token_ids == reference(prompt, 15)
    assert len(engine.model.batches) == 15


@PAGE_SIZES
def test_retracted_answers_equal_unpressed_ones(page_size: int) -> None:
    engine = Engine(pool=768, page_size=page_size, schedule_conservativeness=0.01)
    prompts = {f"r{i}": prompt_of(61 + i, i) for i in range(8)}
    answers = engine.run(*(generate(rid, prompt, 200) for rid, prompt in prompts.items()))
    for rid, prompt in prompts.items():
        assert answers[rid].token_ids == reference(prompt, 200)
    assert sum(answer.last.num_retractions for answer in answers.values()) > 0
    assert engine.used() == 0


def test_retraction_counts_in_pages() -> None:
    # Every request stands one token before a page's end: all need a new page in the same step.
    engine = Engine(pool=64 * 20, page_size=64, schedule_conservativeness=0.01)
    prompts = {f"r{i}": prompt_of(62, i) for i in range(15)}
    answers = engine.run(*(generate(rid, prompt, 10) for rid, prompt in prompts.items()))
    assert all(answers[rid].token_ids == reference(prompts[rid], 10) for rid in prompts)
    assert sum(answer.last.num_retractions for answer in answers.values()) > 0


def test_lpm_admits_the_longest_cached_prefix_first() -> None:
    engine = Engine(schedule_policy="lpm", max_running_requests=1)
    warm = prompt_of(50, 1)
    engine.ask(warm, 1)
    engine.run(generate("cold", prompt_of(50, 2), 1), generate("warm", warm, 1))
    order = [batch.reqs[0].rid for batch in engine.model.batches[1:]]
    assert order == ["warm", "cold"]


def test_equal_prompts_of_one_moment_are_computed_once() -> None:
    engine = Engine(page_size=16)
    prompt = prompt_of(100)
    answers = engine.run(*(generate(f"r{i}", prompt) for i in range(4)))
    assert [answers[f"r{i}"].last.cached_tokens for i in range(4)] == [0, 96, 96, 96]
    assert all(answers[f"r{i}"].token_ids == reference(prompt, 8) for i in range(4))


def test_namespaces_do_not_share() -> None:
    engine = Engine()
    prompt = prompt_of(50)
    for extra_key in (None, "", "a", "b"):
        assert engine.ask(prompt, 2, extra_key=extra_key).last.cached_tokens == 0
    assert engine.ask(prompt, 2, extra_key="a").last.cached_tokens == 49


# ------------------------------------------------------------------ ends


def test_b124_zero_new_tokens_computes_and_plants_the_prompt() -> None:
    engine = Engine()
    prompt = prompt_of(30)
    answer = engine.ask(prompt, 0, return_logprob=True, logprob_start_len=0)
    assert answer.token_ids == []
    assert answer.finish is not None and answer.finish.type == "length"
    rows = answer.last.input_logprobs
    assert rows is not None and rows.token_ids == prompt
    assert engine.used() == 0
    assert engine.ask(prompt, 1).last.cached_tokens == 29


def test_b106_answer_of_a_whole_pool_ends_and_the_next_one_works() -> None:
    engine = Engine(pool=512, context=2048)
    answer = engine.ask(prompt_of(300), 1000, ignore_eos=True)
    assert answer.finish is not None and answer.finish.type == "length"
    assert answer.token_ids == reference(prompt_of(300), 213)
    assert engine.ask(prompt_of(30, 1), 5).token_ids == reference(prompt_of(30, 1), 5)


def test_prompt_longer_than_the_pool_is_refused() -> None:
    answer = Engine(pool=64).ask(prompt_of(65), 1)
    assert answer.finish is not None and answer.finish.status_code == 400


def test_prompt_as_long_as_the_pool_gets_one_token() -> None:
    answer = Engine(pool=64, page_size=16).ask(prompt_of(64), 5)
    assert answer.token_ids == reference(prompt_of(64), 1)


def test_stop_token_ends_and_is_part_of_the_ids() -> None:
    prompt = prompt_of(10)
    expected = reference(prompt, 10)
    answer = Engine().ask(prompt, 10, stop_token_ids=[expected[3]])
    assert answer.finish is not None
    assert (answer.finish.type, answer.finish.matched) == ("stop", expected[3])
    assert answer.token_ids == expected[: expected.index(expected[3]) + 1]


def test_b128_ignore_eos_runs_to_the_length() -> None:
    prompt = prompt_of(10)
    expected = reference(prompt, 64)
    answer = Engine().ask(prompt, 64, stop_token_ids=[expected[3]], ignore_eos=True)
    assert answer.token_ids == expected


def test_b128_min_new_tokens_does_not_count_the_prompt() -> None:
    prompt = prompt_of(200)
    expected = reference(prompt, 80)
    everything = list(range(VOCAB))
    answer = Engine().ask(prompt, 80, stop_token_ids=everything, min_new_tokens=50)
    assert answer.token_ids == expected[:50]


def test_stop_string_ends_with_the_string() -> None:
    prompt = prompt_of(10)
    expected = reference(prompt, 10)
    answer = Engine().ask(prompt, 10, stop=[f"w{expected[5]}"])
    assert answer.finish is not None and answer.finish.matched == f"w{expected[5]}"
    assert answer.token_ids == expected[: expected.index(expected[5]) + 1]


def test_token_outside_the_vocabulary_ends_only_its_request_and_is_not_cached() -> None:
    engine = Engine()
    engine.model.broken_rids.add("bad")
    prompt = prompt_of(40)
    answers = engine.run(generate("bad", prompt), generate("good", prompt_of(40, 1)))
    finish = answers["bad"].finish
    assert finish is not None and (finish.type, finish.status_code) == ("abort", 500)
    assert answers["bad"].token_ids == []
    assert answers["good"].token_ids == reference(prompt_of(40, 1), 8)
    assert engine.ask(prompt, 4).last.cached_tokens == 0


# ------------------------------------------------------------------ logprobs


@PAGE_SIZES
@pytest.mark.parametrize("chunk", [None, 64])
@pytest.mark.parametrize("start", [0, 1, 70, 149])
def test_prompt_logprobs_come_whole_with_the_first_output(
    page_size: int, chunk: int | None, start: int
) -> None:
    engine = Engine(page_size=page_size, chunked_prefill_size=chunk)
    prompt = prompt_of(150)
    for _ in range(2):  # cold, then as a cache hit
        answer = engine.ask(prompt, 3, return_logprob=True, logprob_start_len=start)
        rows = answer.outputs[0].input_logprobs
        assert rows is not None
        assert rows.token_ids == prompt[start:]
        assert rows.logprobs[0] is None
        assert rows.logprobs[1:] == [
            reference_logprob(prompt, position) for position in range(start + 1, 150)
        ]
        assert all(output.input_logprobs is None for output in answer.outputs[1:])
    assert answer.last.cached_tokens == min(start, 149) // page_size * page_size


def test_output_logprobs_follow_the_tokens() -> None:
    prompt = prompt_of(20)
    answer = Engine().ask(prompt, 5, return_logprob=True, stream_interval=2)
    ids = prompt + answer.token_ids
    seen: list[float | None] = []
    for output in answer.outputs:
        assert output.output_logprobs is not None
        assert output.output_logprobs.token_ids == output.token_ids
        seen += output.output_logprobs.logprobs
    assert seen == [reference_logprob(ids, position) for position in range(20, 25)]


# ------------------------------------------------------------------ news


def test_unstreamed_answer_is_one_output() -> None:
    answer = Engine().ask(prompt_of(10), 7, stream=False)
    assert [len(output.token_ids) for output in answer.outputs] == [7]


def test_streamed_answer_sends_the_first_token_and_then_in_intervals() -> None:
    answer = Engine(stream_interval=3).ask(prompt_of(10), 9)
    assert [len(output.token_ids) for output in answer.outputs] == [1, 3, 3, 2]


def test_request_may_choose_its_own_interval() -> None:
    answer = Engine(stream_interval=3).ask(prompt_of(10), 4, stream_interval=1)
    assert [len(output.token_ids) for output in answer.outputs] == [1, 1, 1, 1]


def test_one_message_per_step() -> None:
    engine = Engine()
    engine.run(*(generate(f"r{i}", prompt_of(9, i), 6) for i in range(5)))
    assert len([o for o in engine.outbox.sent if isinstance(o, StepOutput) and o.outputs]) == 6


def test_counters_add_up() -> None:
    engine = Engine()
    engine.ask(prompt_of(50), 5)
    engine.ask(prompt_of(50), 5)
    engine.step()
    last = engine.outbox.sent[-1]
    assert isinstance(last, StepOutput)
    assert last.load.prompt_tokens_total == 100
    assert last.load.cached_tokens_total == 49
    assert last.load.generation_tokens_total == 10
    assert (last.load.num_running_reqs, last.load.num_used_tokens) == (0, 0)
