"""The official OpenAI client against the gateway: what the docs promise, asked as a user would."""

import openai
import pytest

from tests.e2e.conftest import Pool

QUESTION = [{"role": "user", "content": "Name three colours of the rainbow."}]


def chat(pool: Pool, **options):
    options = {"messages": QUESTION, "temperature": 0, "max_tokens": 24, **options}
    return pool.client.chat.completions.create(model=pool.model, **options)


def chat_stream(pool: Pool, **options):
    return list(chat(pool, stream=True, **options))


def text_of(chunks, index: int = 0) -> str:
    return "".join(
        choice.delta.content or ""
        for chunk in chunks
        for choice in chunk.choices
        if choice.index == index
    )


def complete(pool: Pool, prompt="The capital of France is", **options):
    options = {"temperature": 0, "max_tokens": 12, **options}
    return pool.client.completions.create(model=pool.model, prompt=prompt, **options)


def test_models_list_names_the_served_model(pool: Pool) -> None:
    models = pool.client.models.list().data
    assert [m.object for m in models] == ["model"]
    assert pool.client.models.retrieve(models[0].id).id == models[0].id


def test_streamed_chat_equals_the_whole_answer(pool: Pool) -> None:
    whole = chat(pool)
    chunks = chat_stream(pool)
    assert text_of(chunks) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    closing = [c for c in chunks if c.choices and c.choices[0].finish_reason]
    assert len(closing) == 1
    assert closing[0].choices[0].delta.content in (None, "")
    assert closing[0].choices[0].finish_reason == whole.choices[0].finish_reason


def test_streamed_completion_equals_the_whole_answer(pool: Pool) -> None:
    whole = complete(pool)
    chunks = list(complete(pool, stream=True))
    assert "".join(c.choices[0].text for c in chunks) == whole.choices[0].text
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 12


def test_two_answers_have_two_indexes_and_differ(pool: Pool) -> None:
    chunks = chat_stream(pool, n=2, temperature=1.0, seed=7, max_tokens=16)
    assert {c.choices[0].index for c in chunks if c.choices} == {0, 1}
    assert text_of(chunks, 0) != text_of(chunks, 1)
    whole = chat(pool, n=2, temperature=1.0, max_tokens=8, extra_body={"ignore_eos": True})
    assert [c.index for c in whole.choices] == [0, 1]
    assert whole.usage.completion_tokens == 16


def test_prompts_times_answers_are_numbered_prompt_by_prompt(pool: Pool) -> None:
    answer = complete(pool, ["one", "two"], n=2, max_tokens=4)
    assert [c.index for c in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].text == answer.choices[1].text  # greedy
    assert answer.choices[0].text != answer.choices[2].text
    assert answer.usage.completion_tokens == 16


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 8])
def test_stop_string_cuts_at_any_border(pool: Pool, cut: int) -> None:
    text = chat(pool).choices[0].message.content
    stop = text[cut : cut + 4]  # rarely a whole token
    want = text[: text.index(stop)]
    whole = chat(pool, stop=[stop])
    chunks = chat_stream(pool, stop=[stop], stream_options={"include_usage": True})
    assert whole.choices[0].message.content == want
    assert text_of(chunks) == want
    assert whole.choices[0].finish_reason == "stop"
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_max_completion_tokens_is_max_tokens(pool: Pool) -> None:
    answer = pool.client.chat.completions.create(
        model=pool.model, messages=QUESTION, temperature=0, max_completion_tokens=5
    )
    assert answer.usage.completion_tokens == 5
    assert answer.choices[0].finish_reason == "length"


def test_seed_repeats_and_its_absence_varies(pool: Pool) -> None:
    ask = lambda **o: chat(pool, temperature=1.0, max_tokens=20, **o).choices[0].message.content  # noqa: E731
    assert ask(seed=11) == ask(seed=11)
    assert len({ask() for _ in range(5)}) >= 2


def test_tiny_top_p_is_greedy(pool: Pool) -> None:
    greedy = chat(pool).choices[0].message.content
    assert chat(pool, temperature=1.0, top_p=1e-6).choices[0].message.content == greedy


def test_logprobs_come_one_per_token(pool: Pool) -> None:
    content = chat(pool, logprobs=True, top_logprobs=3, max_tokens=4).choices[0].logprobs.content
    assert len(content) == 4
    for entry in content:
        assert [top.token for top in entry.top_logprobs][0] == entry.token  # greedy
        assert len(entry.top_logprobs) == 3
        assert bytes(entry.bytes).decode() == entry.token
        assert entry.logprob <= 0
    plain = chat(pool, logprobs=True, max_tokens=3).choices[0].logprobs.content
    assert [entry.top_logprobs for entry in plain] == [[], [], []]


def test_completion_logprobs_zero_gives_the_chosen_tokens(pool: Pool) -> None:
    rows = complete(pool, logprobs=0, max_tokens=3).choices[0].logprobs
    assert len(rows.tokens) == len(rows.token_logprobs) == len(rows.text_offset) == 3


def test_usage_comes_last_when_asked(pool: Pool) -> None:
    chunks = chat_stream(pool, stream_options={"include_usage": True})
    assert chunks[-1].choices == []
    assert chunks[-1].usage.prompt_tokens == chat(pool).usage.prompt_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_second_turn_finds_the_first_in_the_cache(pool: Pool) -> None:
    first = chat(pool, max_tokens=16)
    turns = [
        *QUESTION,
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "And which one is the warmest?"},
    ]
    second = chat(pool, messages=turns)
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert cached >= first.usage.prompt_tokens - 1
    assert second.usage.prompt_tokens > cached


def test_logit_bias_forces_and_forbids(pool: Pool) -> None:
    forced = complete(pool, logit_bias={"28": 100}, max_tokens=4, logprobs=0)
    assert len(set(forced.choices[0].logprobs.tokens)) == 1
    free = complete(pool, max_tokens=1, logprobs=1)
    token = free.choices[0].logprobs.tokens[0]
    [ids] = [
        pool.client.post("/tokenize", body={"prompt": token, "add_special_tokens": False},
                         cast_to=dict, options={})["tokens"]
    ]  # fmt: skip
    banned = complete(pool, logit_bias={str(ids[0]): -100}, max_tokens=1, logprobs=0)
    assert banned.choices[0].logprobs.tokens[0] != token


def test_penalties_break_a_repetition(pool: Pool) -> None:
    prompt = "ha ha ha ha ha ha ha ha ha ha"
    plain = complete(pool, prompt, max_tokens=24).choices[0].text
    for penalty in ({"frequency_penalty": 2.0}, {"presence_penalty": 2.0}):
        assert complete(pool, prompt, max_tokens=24, **penalty).choices[0].text != plain


def test_echo_repeats_the_prompt_with_its_logprobs(pool: Pool) -> None:
    answer = complete(pool, "Hello there", echo=True, logprobs=1, max_tokens=1)
    listed = complete(pool, ["Hello there"], echo=True, logprobs=1, max_tokens=1)
    assert answer.choices[0].text.startswith("Hello there")
    assert answer.choices[0].logprobs.token_logprobs[0] is None
    assert listed.choices[0].model_dump() == answer.choices[0].model_dump()


def test_unknown_model_is_not_found(pool: Pool) -> None:
    for name in ("no/such:model", "x" * 300, "модель"):
        with pytest.raises(openai.NotFoundError) as error:
            pool.client.chat.completions.create(model=name, messages=QUESTION)
        assert error.value.code == "model_not_found"
        assert pool.model in str(error.value)
