"""Faults that users of such systems reported (../shared/cases/public-reports.md), each as a test.

The id in a test's name is the report's. The ones that need no server are beside their module and
carry the id there: templates and tokenizing in gateway/tokenizer (B020, B168, B176), streams in
gateway/server/tests (B030), GGUF in tests/unit/srt/model_loader (B172), memory and scheduling in
tests/unit/srt/managers (B101, B105, B108); B171 is tests/e2e/test_tokenizer.py.
"""

import json
from collections.abc import Iterator

import pytest

from tests.e2e import processes
from tests.e2e.conftest import Pool
from tests.e2e.processes import Server, call, events

CONTEXT = 8192


def post(pool: Pool, path: str, **body):
    status, reply, _ = call(f"{pool.url}{path}", {"model": pool.model, **body})
    assert status == 200, reply
    return reply


def chat(pool: Pool, text: str = "Name three colours.", **body):
    messages = body.pop("messages", [{"role": "user", "content": text}])
    return post(pool, "/v1/chat/completions", messages=messages, temperature=0, **body)


def streamed(pool: Pool, path: str, **body) -> list:
    found = events(f"{pool.url}{path}", {"model": pool.model, "stream": True, **body})
    assert found[-1] == "[DONE]"
    return found[:-1]


def completion(pool: Pool, **body):
    return post(pool, "/v1/completions", **{"temperature": 0, **body})


def ids_of(pool: Pool, text: str) -> list[int]:
    return post(pool, "/tokenize", prompt=text, add_special_tokens=False)["tokens"]


def test_b004_the_closing_chunk_has_no_text(pool: Pool) -> None:
    messages = [{"role": "user", "content": "Name three colours."}]
    chunks = streamed(pool, "/v1/chat/completions", messages=messages, temperature=0, max_tokens=5)
    open_text = "".join(
        c["choices"][0]["delta"].get("content") or ""
        for c in chunks
        if c["choices"][0]["finish_reason"] is None
    )
    assert open_text == chat(pool, max_tokens=5)["choices"][0]["message"]["content"]
    assert not chunks[-1]["choices"][0]["delta"].get("content")


def test_b006_ordinary_chunks_carry_a_null_usage(pool: Pool) -> None:
    chunks = streamed(
        pool, "/v1/chat/completions", messages=[{"role": "user", "content": "Hi"}], max_tokens=4,
        stream_options={"include_usage": True},
    )  # fmt: skip
    assert all("usage" in c and c["usage"] is None for c in chunks[:-1])
    assert chunks[-1]["usage"]["completion_tokens"] > 0


def test_b008_a_stop_string_loses_nothing_before_it(pool: Pool) -> None:
    body = {"prompt": "Q: Who are you?\nQ: How are you?\nQ:", "stop": ["\n"], "max_tokens": 24}
    whole = completion(pool, **body)["choices"][0]["text"]
    chunks = streamed(pool, "/v1/completions", temperature=0, **body)
    assert "".join(c["choices"][0]["text"] for c in chunks) == whole
    assert "\n" not in whole


def test_b009_logprobs_without_top_logprobs(pool: Pool) -> None:
    content = chat(pool, logprobs=True, max_tokens=3)["choices"][0]["logprobs"]["content"]
    assert [sorted(entry) for entry in content] == [
        ["bytes", "logprob", "token", "top_logprobs"]
    ] * 3
    assert [entry["top_logprobs"] for entry in content] == [[], [], []]


def test_b011_completions_take_logprobs_zero(pool: Pool) -> None:
    rows = completion(pool, prompt="Hi", logprobs=0, max_tokens=3)["choices"][0]["logprobs"]
    assert len(rows["tokens"]) == len(rows["token_logprobs"]) == len(rows["text_offset"]) == 3


def test_b014_b035_indexes_number_the_answers(pool: Pool) -> None:
    chunks = streamed(
        pool,
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "Hi"}],
        n=2,
        max_tokens=4,
    )
    assert {c["choices"][0]["index"] for c in chunks} == {0, 1}
    answer = completion(pool, prompt=["one", "two"], n=2, max_tokens=4)
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == len(ids_of(pool, "one")) + len(ids_of(pool, "two"))


def test_b022_text_parts_equal_the_text(pool: Pool) -> None:
    def turns(content):
        return [
            {"role": "user", "content": "What is six times seven?"},
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "call_1", "type": "function",
                 "function": {"name": "multiply", "arguments": '{"a": 6, "b": 7}'}}]},
            {"role": "tool", "tool_call_id": "call_1", "content": content},
        ]  # fmt: skip

    as_text = chat(pool, messages=turns("42"), max_tokens=2)["usage"]["prompt_tokens"]
    as_parts = chat(pool, messages=turns([{"type": "text", "text": "42"}]), max_tokens=2)
    assert as_parts["usage"]["prompt_tokens"] == as_text


@pytest.mark.parametrize("stream", [True, False])
def test_b024_null_stream_options_are_fine(pool: Pool, stream: bool) -> None:
    body = {"model": pool.model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2,
            "stream": stream, "stream_options": None}  # fmt: skip
    assert call(f"{pool.url}/v1/chat/completions", body)[0] == 200


def test_b026_echo_of_ids_is_text(pool: Pool) -> None:
    text = "The harbour was quiet that morning."
    choice = completion(
        pool, prompt=ids_of(pool, text), echo=True, logprobs=1, max_tokens=1
    )["choices"][0]  # fmt: skip
    assert choice["text"].startswith(text)
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert len(choice["logprobs"]["tokens"]) == len(ids_of(pool, text)) + 1


def test_b027_a_list_of_one_equals_the_string(pool: Pool) -> None:
    body = {"echo": True, "logprobs": 1, "max_tokens": 1}
    one = completion(pool, prompt="Hello there", **body)
    listed = completion(pool, prompt=["Hello there"], **body)
    assert one["choices"] == listed["choices"]


@pytest.mark.parametrize("stream", [True, False])
def test_b032_too_many_tokens_are_refused_with_both_numbers(pool: Pool, stream: bool) -> None:
    body = {
        "model": pool.model,
        "prompt": [9] * (CONTEXT // 2),
        "max_tokens": CONTEXT,
        "stream": stream,
    }
    status, reply, _ = call(f"{pool.url}/v1/completions", body)
    assert status == 400
    assert str(CONTEXT // 2) in reply["error"]["message"]
    assert str(CONTEXT) in reply["error"]["message"]


def test_b034_usage_is_the_same_streamed(pool: Pool) -> None:
    for extra in ({"stop": ["lour"]}, {"max_tokens": 9}, {"max_tokens": 200}):
        whole = chat(pool, **extra)["usage"]["completion_tokens"]
        chunks = streamed(
            pool, "/v1/chat/completions", temperature=0, stream_options={"include_usage": True},
            messages=[{"role": "user", "content": "Name three colours."}], **extra,
        )  # fmt: skip
        assert chunks[-1]["usage"]["completion_tokens"] == whole


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A gateway before a worker with a pool of 512 tokens."""
    folder = tmp_path_factory.mktemp("tight")
    with (
        processes.engine(folder, "--max-total-tokens", "512") as worker,
        processes.gateway(folder, [worker]) as gateway,
    ):
        yield gateway


@pytest.fixture(scope="module", params=[1, 16], ids=["pages_of_1", "pages_of_16"])
def short(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A gateway before a worker with a context of 256 tokens."""
    folder = tmp_path_factory.mktemp("short")
    flags = ["--context-length", "256", "--page-size", str(request.param)]
    with (
        processes.engine(folder, *flags) as worker,
        processes.gateway(folder, [worker]) as gateway,
    ):
        yield gateway


def test_b106_a_request_that_outgrows_the_pool_ends_alone(tight: Server) -> None:
    body = {
        "input_ids": [11] * 300,
        "sampling_params": {"max_new_tokens": 1000, "ignore_eos": True},
    }
    status, reply, _ = call(f"{tight.url}/generate", body)
    assert status == 200, reply
    assert reply["meta_info"]["finish_reason"]["type"] == "length"
    # 512 slots: 300 of the prompt, 212 of the answer; its last token needs none.
    assert reply["meta_info"]["completion_tokens"] == 213
    small = {"text": "hi", "sampling_params": {"max_new_tokens": 3}}
    assert call(f"{tight.url}/generate", small)[0] == 200


def test_b111_usage_of_the_pool_is_flat(tight: Server) -> None:
    held = []
    for number in range(120):
        body = {
            "input_ids": [100 + number, *range(200, 240)],
            "sampling_params": {"max_new_tokens": 2},
        }
        assert call(f"{tight.url}/generate", body)[0] == 200
        if number % 30 == 29:
            state = call(f"{tight.url}/server_info")[1]["internal_states"][0]
            held.append(state["num_used_tokens"])
    assert held == [0, 0, 0, 0]


def test_b112_the_second_turn_hits_where_ids_agree(pool: Pool) -> None:
    first_turn = [{"role": "user", "content": "Tell me about lighthouses, briefly."}]
    first = chat(pool, messages=first_turn, max_tokens=24)
    said = {"role": "assistant", "content": first["choices"][0]["message"]["content"]}
    turns = [*first_turn, said, {"role": "user", "content": "Thanks!"}]
    warm = chat(pool, messages=turns, max_tokens=12)
    assert (
        warm["usage"]["prompt_tokens_details"]["cached_tokens"]
        >= first["usage"]["prompt_tokens"] - 4
    )
    cold = chat(pool, messages=turns, max_tokens=12, extra_key="cold")
    assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert warm["choices"][0]["message"] == cold["choices"][0]["message"]


def test_b124_no_new_tokens(pool: Pool) -> None:
    reply = post(
        pool, "/generate", text="The sea is calm", return_logprob=True, logprob_start_len=0,
        sampling_params={"max_new_tokens": 0},
    )  # fmt: skip
    assert reply["meta_info"]["completion_tokens"] == 0
    assert reply["meta_info"]["finish_reason"]["type"] == "length"
    assert len(reply["meta_info"]["input_token_logprobs"]) == reply["meta_info"]["prompt_tokens"]
    choice = completion(pool, prompt="The sea is", max_tokens=0, echo=True, logprobs=1)["choices"][
        0
    ]
    assert choice["text"] == "The sea is"
    assert len(choice["logprobs"]["tokens"]) == len(ids_of(pool, "The sea is"))


def test_b126_temperature_one_is_not_greedy(pool: Pool) -> None:
    texts = {
        completion(pool, prompt="Once", temperature=1.0, seed=s, max_tokens=12)["choices"][0][
            "text"
        ]
        for s in range(5)
    }
    assert len(texts) >= 2


def test_b128_min_tokens_counts_new_ones(pool: Pool) -> None:
    reply = completion(pool, prompt=[25] * 200, min_tokens=50, max_tokens=60)
    assert reply["usage"]["completion_tokens"] >= 50
    reply = completion(pool, prompt="Hi", ignore_eos=True, max_tokens=64)
    assert reply["usage"]["completion_tokens"] == 64
    assert reply["choices"][0]["finish_reason"] == "length"


def test_b130_prompt_logprobs_are_of_the_unfiltered_distribution(pool: Pool) -> None:
    body = {"prompt": "Hello there friend", "echo": True, "logprobs": 1, "max_tokens": 1}
    narrow = completion(pool, top_k=1, temperature=1, **body)["choices"][0]["logprobs"]
    wide = completion(pool, **body)["choices"][0]["logprobs"]
    count = len(ids_of(pool, "Hello there friend"))
    for a, b in zip(
        narrow["token_logprobs"][1:count], wide["token_logprobs"][1:count], strict=True
    ):
        assert abs(a - b) < 1e-3


@pytest.mark.parametrize(
    "field,value",
    [("top_k", 0.01), ("top_k", "5"), ("n", 1.5), ("max_tokens", 3.7), ("seed", 1.5)],
)
def test_b131_fractions_are_refused(pool: Pool, field: str, value) -> None:
    status, reply, _ = call(
        f"{pool.url}/v1/completions", {"model": pool.model, "prompt": "a", field: value}
    )
    assert status == 400
    assert field in json.dumps(reply)


def test_b133_long_lists_do_no_harm(pool: Pool) -> None:
    bodies = [
        {"logit_bias": {str(i): 1.0 for i in range(3000)}},
        {"stop_token_ids": list(range(500))},
        {"stop": [f"s{i}" for i in range(200)]},
    ]
    for body in bodies:
        status, reply, _ = call(
            f"{pool.url}/v1/completions",
            {"model": pool.model, "prompt": "a", "max_tokens": 3, **body},
        )
        assert status in (200, 400), reply


def test_b135_tiny_temperatures_are_greedy(pool: Pool) -> None:
    want = completion(pool, prompt="The sea", max_tokens=8)["choices"][0]["text"]
    for temperature in (1e-6, 1e-30):
        got = completion(pool, prompt="The sea", max_tokens=8, temperature=temperature, top_p=0.9)
        assert got["choices"][0]["text"] == want


def test_b140_prompts_at_the_edge_of_the_context(short: Server) -> None:
    for length in (254, 255, 256, 257):
        for new in (1, 5, None):
            for _ in ("cold", "hit"):
                params = {"temperature": 0} | ({"max_new_tokens": new} if new else {})
                body = {"input_ids": [30] * length, "sampling_params": params}
                status, reply, _ = call(f"{short.url}/generate", body)
                fits = length + (new or 1) <= 256
                assert status == (200 if fits else 400), (length, new, reply)
                if fits:
                    assert reply["meta_info"]["completion_tokens"] >= 1
    state = call(f"{short.url}/server_info")[1]["internal_states"][0]
    assert state["num_used_tokens"] == 0


@pytest.mark.parametrize(
    "ebnf",
    [
        "root ::= " + "(" * 60_000 + "x" + ")" * 60_000,
        "root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1}" for i in range(5000)) + '\nr5000 ::= "x"',
    ],
    ids=["nested", "chained"],
)
def test_b143_a_deep_grammar_is_refused_and_the_server_lives(pool: Pool, ebnf: str) -> None:
    body = {"text": "a", "sampling_params": {"ebnf": ebnf, "max_new_tokens": 2}}
    status, reply, _ = call(f"{pool.url}/generate", body)
    assert status == 400, reply
    assert completion(pool, prompt="a", max_tokens=2)["choices"][0]["text"]


def test_b144_a_cut_character_is_one_replacement_at_the_end(pool: Pool) -> None:
    partial = ids_of(pool, "東")[0]
    if len(ids_of(pool, "東")) == 1:
        partial = ids_of(pool, "🦭")[0]
    body = {"prompt": "x", "logit_bias": {str(partial): 100}, "max_tokens": 1, "logprobs": 1}
    choice = completion(pool, **body)["choices"][0]
    assert choice["text"].rstrip("\ufffd").isascii()
    chunks = streamed(pool, "/v1/completions", temperature=0, **body)
    assert "".join(c["choices"][0]["text"] for c in chunks) == choice["text"]
    answer = chat(pool, logit_bias={str(partial): 100}, max_tokens=1, logprobs=True)
    raw = bytes(answer["choices"][0]["logprobs"]["content"][0]["bytes"])
    with pytest.raises(UnicodeDecodeError):
        raw.decode()


@pytest.mark.parametrize("arguments", ['{"a": "x"y"}', "", None, {"a": 1}], ids=str)
def test_b146_old_tool_calls_do_not_stop_a_conversation(pool: Pool, arguments) -> None:
    messages = [
        {"role": "user", "content": "Do it"},
        {"role": "assistant", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
        {"role": "user", "content": "And?"},
    ]  # fmt: skip
    body = {"model": pool.model, "messages": messages, "max_tokens": 2}
    status, reply, _ = call(f"{pool.url}/v1/chat/completions", body)
    assert status in (200, 400), reply
    if status == 400:
        assert "messages" in json.dumps(reply)


def test_b148_without_max_tokens_a_long_prompt_runs_to_the_end(short: Server) -> None:
    words = "go " * 200
    base = {
        "messages": [{"role": "user", "content": words}],
        "ignore_eos": True,
        "temperature": 0,
    }
    first = call(f"{short.url}/v1/chat/completions", {**base, "max_tokens": 1})[1]
    reply = call(f"{short.url}/v1/chat/completions", base)[1]
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["total_tokens"] == 256
    assert reply["usage"]["prompt_tokens"] == first["usage"]["prompt_tokens"]


def test_b175_a_chat_ends_at_its_turn(pool: Pool) -> None:
    choice = chat(pool, "Say hello in one word.", max_tokens=200)["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert "<|im_" not in choice["message"]["content"]


def test_b177_no_token_beyond_the_vocabulary(pool: Pool) -> None:
    size = 49152
    params = {"temperature": 2.0, "max_new_tokens": 400, "ignore_eos": True}
    reply = post(pool, "/generate", text="x", sampling_params=params, return_logprob=True,
                 return_text_in_logprobs=True)  # fmt: skip
    assert all(0 <= token < size for token in reply["output_ids"])
    assert all(row[2] is not None for row in reply["meta_info"]["output_token_logprobs"])
