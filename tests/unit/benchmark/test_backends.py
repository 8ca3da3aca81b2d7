"""What is sent, and what is understood."""

import pytest

from sglang.benchmark.backends import BACKENDS, Ask, News, Sampling

SAMPLING = Sampling("m", temperature=0.5, top_p=0.9)


def test_native_body() -> None:
    body = BACKENDS["sglang"].body(Ask("hi", 5), SAMPLING)
    assert body == {
        "text": "hi", "stream": True, "return_logprob": False,
        "sampling_params": {
            "temperature": 0.5, "top_p": 0.9, "max_new_tokens": 5, "ignore_eos": True,
        },
    }  # fmt: skip
    assert BACKENDS["sglang"].body(Ask([1, 2], 5), SAMPLING)["input_ids"] == [1, 2]


@pytest.mark.parametrize("name", ["sglang-oai", "vllm"])
def test_completions_body(name: str) -> None:
    body = BACKENDS[name].body(Ask([1, 2], 5), SAMPLING)
    assert body == {
        "model": "m", "prompt": [1, 2], "max_tokens": 5, "temperature": 0.5, "top_p": 0.9,
        "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    whole = BACKENDS[name].body(Ask("hi", 5), Sampling("m", stream=False, return_logprob=True))
    assert "stream_options" not in whole and whole["logprobs"] == 1


def test_chat_body() -> None:
    chat = BACKENDS["vllm-chat"]
    assert chat.body(Ask("hi", 5), SAMPLING)["messages"] == [{"role": "user", "content": "hi"}]
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert chat.body(Ask(messages, 5), SAMPLING)["messages"] == messages


def test_native_events() -> None:
    read = BACKENDS["sglang"].read
    meta = {"prompt_tokens": 3, "completion_tokens": 2, "cached_tokens": 1, "finish_reason": None}
    assert read({"text": "ab", "meta_info": meta}) == News(
        whole_text="ab", has_token=True, prompt_tokens=3, completion_tokens=2, cached_tokens=1
    )
    aborted = {"finish_reason": {"type": "abort", "message": "too long"}}
    assert read({"text": "", "meta_info": aborted}).error == "aborted: too long"
    assert read({"error": {"message": "no"}}).error == "no"
    assert read({"error": "no"}).error == "no"


def test_openai_events() -> None:
    read = BACKENDS["sglang-oai-chat"].read
    assert not read({"choices": [{"delta": {"role": "assistant", "content": ""}}]}).has_token
    assert read({"choices": [{"delta": {"content": "a"}}], "usage": None}).text == "a"
    assert read({"choices": [{"delta": {"reasoning_content": "r"}}]}).text == "r"
    assert read({"choices": [{"text": "t"}]}).text == "t"
    assert read({"choices": [{"message": {"content": "whole"}}]}).text == "whole"
    usage = {"prompt_tokens": 4, "completion_tokens": 9, "prompt_tokens_details": None}
    assert read({"choices": [], "usage": usage}) == News(prompt_tokens=4, completion_tokens=9)
    assert read({"error": {"message": "no"}}).error == "no"


@pytest.mark.parametrize(
    "odd",
    [
        {"text": 5}, {"text": ["a"]}, {"meta_info": [1]}, {"meta_info": {"finish_reason": "stop"}},
        {"meta_info": {"completion_tokens": "3"}}, {"meta_info": {"prompt_tokens": -1}},
        {"meta_info": {"cached_tokens": 0.5}},
    ],
)  # fmt: skip
def test_native_events_that_are_not_as_the_api_says_raise(odd: dict[str, object]) -> None:
    with pytest.raises((AttributeError, LookupError, TypeError)):
        BACKENDS["sglang"].read({"text": "a", "meta_info": {}, **odd})


@pytest.mark.parametrize(
    "odd",
    [
        {"choices": 5}, {"choices": [None]}, {"choices": ["a"]}, {"choices": [{"delta": "a"}]},
        {"choices": [{"text": 5}]}, {"usage": [1]}, {"usage": {"completion_tokens": "3"}},
        {"usage": {"prompt_tokens_details": 3}},
    ],
)  # fmt: skip
def test_openai_events_that_are_not_as_the_api_says_raise(odd: dict[str, object]) -> None:
    with pytest.raises((AttributeError, LookupError, TypeError)):
        BACKENDS["vllm"].read(odd)


@pytest.mark.parametrize("name", ["sglang-embedding", "vllm-embedding"])
def test_embeddings(name: str) -> None:
    backend = BACKENDS[name]
    assert backend.body(Ask([1, 2], 5), SAMPLING) == {"model": "m", "input": [1, 2]}
    answer = {"data": [{"embedding": [0.6, 0.8]}], "usage": {"prompt_tokens": 2}}
    assert backend.read(answer) == News(prompt_tokens=2)
    assert backend.read({"data": [{"embedding": []}]}).error == "the embedding is empty"
    assert backend.read({"error": {"message": "no"}}).error == "no"


def test_names_of_the_same_api_are_one_backend() -> None:
    assert BACKENDS["sglang-native"] is BACKENDS["sglang"]
    assert BACKENDS["lmdeploy"].path == BACKENDS["vllm"].path == "/v1/completions"
    assert (BACKENDS["lmdeploy"].port, BACKENDS["lmdeploy-chat"].port) == (23333, 23333)


@pytest.mark.parametrize(
    ("name", "model", "path"),
    [
        ("sglang", None, "a"), ("sglang-oai", "m", "a"), ("sglang-oai-chat", "m", "a"),
        ("vllm", "a", None), ("lmdeploy-chat", "a", None), ("vllm-embedding", "a", None),
    ],
)  # fmt: skip
def test_an_adapter_stands_where_the_server_looks_for_it(
    name: str, model: str | None, path: str | None
) -> None:
    backend = BACKENDS[name]
    body = backend.request(Ask("hi", 5, adapter="a"), SAMPLING)
    assert (body.get("model"), body.get("lora_path")) == (model, path)
    assert backend.request(Ask("hi", 5), SAMPLING) == backend.body(Ask("hi", 5), SAMPLING)


def test_a_conversation_goes_on_from_its_answer() -> None:
    first = Ask("q1", 5, at=2.0, follow_ups=("q2", "q3"), adapter="a")
    second = first.next_turn("a1", is_chat=False)
    assert second == Ask("q1a1q2", 5, 2.0, ("q3",), "a")
    assert second.next_turn("a2", is_chat=False) == Ask("q1a1q2a2q3", 5, 2.0, (), "a")
    chat = first.next_turn("a1", is_chat=True).next_turn("a2", is_chat=True)
    assert [(m["role"], m["content"]) for m in chat.messages] == [
        ("user", "q1"), ("assistant", "a1"), ("user", "q2"), ("assistant", "a2"), ("user", "q3"),
    ]  # fmt: skip
