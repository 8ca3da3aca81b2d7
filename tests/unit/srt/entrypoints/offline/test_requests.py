"""Arguments of `generate` and `encode` become checked inputs, or errors that name them."""

from typing import Any

import pytest

from sglang.srt.core.messages import SessionRef
from sglang.srt.core.sampling_params import TOP_K_ALL
from sglang.srt.entrypoints.offline.requests import Request, embedding_request, generate_request
from tests.unit.srt.entrypoints.offline.models import CONTEXT_LEN, EOS, ids_of, served


def read(
    prompt: Any = None, params: Any = None, *, input_ids: Any = None, **options: Any
) -> Request:
    model = options.pop("model", served())
    stream = options.pop("stream", False)
    given = {"prompt": prompt, "input_ids": input_ids}
    return generate_request(model, given, params, options, stream=stream)  # type: ignore[arg-type]


def test_a_text_is_one_prompt_and_a_list_of_one_a_batch() -> None:
    one, batch = read("ab"), read(["ab"])
    assert [p.inputs[0].input_ids for p in one.prompts] == [ids_of("ab")]
    assert (one.as_list, batch.as_list) == (False, True)


def test_ids_are_taken_as_they_are() -> None:
    assert read(input_ids=[3, 1]).prompts[0].inputs[0].input_ids == [3, 1]
    batch = read(input_ids=[[3, 1], (2,)])
    assert [p.inputs[0].input_ids for p in batch.prompts] == [[3, 1], [2]]
    assert batch.as_list


def test_n_answers_are_a_list_with_ids_of_their_own() -> None:
    request = read("ab", {"n": 3, "sampling_seed": 5}, rid="r")
    assert request.as_list
    assert [entry.rid for entry in request.prompts[0].inputs] == ["r#0", "r#1", "r#2"]
    assert [entry.sampling.sampling_seed for entry in request.prompts[0].inputs] == [5, 6, 7]


def test_without_rid_every_prompt_gets_one() -> None:
    rids = [prompt.rid for prompt in read(["a", "b"]).prompts]
    assert len(set(rids)) == 2
    assert all(len(rid) == 32 for rid in rids)


def test_rid_of_a_batch_is_numbered() -> None:
    assert [prompt.rid for prompt in read(["a", "b"], rid="r").prompts] == ["r_0", "r_1"]
    assert [prompt.rid for prompt in read(["a", "b"], rid=["x", "y"]).prompts] == ["x", "y"]


def test_values_are_the_callers_over_the_models_over_the_built_in_ones() -> None:
    model = served((("temperature", 0.5), ("top_p", 0.75)))
    params = read("a", {"top_p": 0.25}, model=model).prompts[0].inputs[0].sampling
    assert (params.temperature, params.top_p, params.top_k) == (0.5, 0.25, TOP_K_ALL)


def test_none_is_like_left_out() -> None:
    params = read("a", {"top_p": None, "stop": None}).prompts[0].inputs[0].sampling
    assert (params.top_p, params.stop) == (1.0, [])


def test_single_stops_are_lists() -> None:
    given = {"stop": "x", "stop_regex": "y+", "stop_token_ids": 7, "logit_bias": {"3": 1}}
    params = read("a", given).prompts[0].inputs[0].sampling
    assert (params.stop, params.stop_regex, params.stop_token_ids) == (["x"], ["y+"], [7])
    assert params.logit_bias == {3: 1.0}


def test_default_length_gives_way_to_the_context() -> None:
    assert read("a" * 60).prompts[0].inputs[0].sampling.max_new_tokens == CONTEXT_LEN - 60
    assert read("a").prompts[0].inputs[0].sampling.max_new_tokens == CONTEXT_LEN - 1


def test_lists_have_a_value_for_each_prompt() -> None:
    request = read(
        ["a", "b"],
        [{"max_new_tokens": 1}, {"max_new_tokens": 2}],
        return_logprob=[True, False],
        top_logprobs_num=[3, 4],
        token_ids_logprob=[[5], None],
        extra_key=["k", None],
        cache_salt="s",
        priority=[1, 2],
    )
    first, second = (prompt.inputs[0] for prompt in request.prompts)
    assert [one.sampling.max_new_tokens for one in (first, second)] == [1, 2]
    assert (first.return_logprob, first.top_logprobs_num, first.token_ids_logprob) == (True, 3, [5])
    assert (second.return_logprob, second.top_logprobs_num) == (False, 0)
    assert (first.extra_key, second.extra_key) == ("ks", "s")
    assert (first.priority, second.priority) == (1, 2)


def test_one_list_of_ids_is_for_every_prompt() -> None:
    request = read(["a", "b"], return_logprob=True, token_ids_logprob=[5, 6])
    assert [p.inputs[0].token_ids_logprob for p in request.prompts] == [[5, 6], [5, 6]]


def test_session_and_routing_key_go_on() -> None:
    session = {"id": "s", "rid": "r", "offset": 3}
    entry = read("a", session_params=session, routing_key="k").prompts[0].inputs[0]
    assert entry.session == SessionRef(id="s", rid="r", offset=3)
    assert entry.routing_key == "k"


def test_stream_is_told_to_the_scheduler() -> None:
    assert read("a", stream=True).prompts[0].inputs[0].stream
    assert not read("a").prompts[0].inputs[0].stream


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "Either text, input_ids or input_embeds should be provided."),
        ({"prompt": "a", "input_ids": [1]}, "Got both prompt and input_ids"),
        ({"prompt": ""}, "prompt cannot be empty"),
        ({"prompt": []}, "prompt cannot be empty"),
        ({"prompt": ["a", ""]}, "prompt cannot be empty"),
        ({"prompt": ["a", 7]}, "prompt must be a text or a list of texts, got 7"),
        ({"input_ids": []}, "input_ids cannot be empty"),
        ({"input_ids": [[1], []]}, "input_ids cannot be empty"),
        ({"input_ids": [1, "x"]}, "input_ids must hold whole numbers, got 'x'"),
        ({"input_ids": [[1], 2]}, "lists of token ids; got 2"),
        ({"input_ids": [EOS + 1]}, rf"input_ids must be ids of the vocabulary.*got {EOS + 1}"),
        ({"input_ids": [-1]}, "input_ids must be ids of the vocabulary.*got -1"),
        ({"prompt": "a" * CONTEXT_LEN}, rf"The input \({CONTEXT_LEN} tokens\) is longer"),
        ({"prompt": "a", "params": 7}, "sampling_params must be a dictionary, got 7"),
        ({"prompt": "a", "params": {"top_q": 1}}, "`top_q` is no sampling parameter; did you mean"),
        ({"prompt": "a", "params": {"top_k": "x"}}, r"sampling_params: Expected `int`.*top_k"),
        ({"prompt": "a", "params": {"top_p": 2}}, r"sampling_params.top_p must be in \(0, 1\]"),
        ({"prompt": "a", "params": {"n": 999}}, "sampling_params.n must be at most 128"),
        ({"prompt": ["a", "b"], "params": [{}]}, "sampling_params must be one value, or a list"),
        ({"prompt": ["a", "b"], "params": [{}, {"top_q": 1}]}, r"sampling_params\[1\]: `top_q`"),
        ({"prompt": ["a", "b"], "params": [{}, {"n": 2}]}, "the same n, got 1 and 2"),
        ({"prompt": ["a", "b"], "rid": ["r", "r"]}, "Duplicate request ID detected: r"),
        ({"prompt": "a", "return_logprob": [True, True]}, "each of the 1 prompts, got a list of 2"),
        ({"prompt": "a", "session_params": {"rid": "r"}}, "session_params.*`id`"),
        (
            {"prompt": "a", "session_params": {"id": "s", "drop_previous": True}},
            "session_params: `drop_previous` is no key of it; did you mean "
            r"`drop_previous_output`\? there are: id, rid, offset, replace, drop_previous_output",
        ),
        (
            {"prompt": "a", "return_logprob": True, "logprob_start_len": 9},
            "logprob_start_len must be -1",
        ),
        (
            {"prompt": "a", "return_logprob": True, "token_ids_logprob": [-1]},
            "token_ids_logprob must be ids of the vocabulary",
        ),
    ],
)
def test_mistake_is_named(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        read(**arguments)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"priority": 1.5}, r"got `float` - at `\$.priority`"),
        ({"priority": 2**80}, "priority cannot be sent"),
        ({"rid": [5]}, r"at `\$.rid`"),
        ({"extra_key": "\ud800"}, "extra_key cannot be sent"),
        ({"routing_key": {"a": 1}}, r"at `\$.routing_key`"),
        ({"custom_logit_processor": print}, "custom_logit_processor cannot be sent"),
        ({"lora_path": "\ud800"}, "lora_path cannot be sent"),
        ({"params": {"custom_params": {"x": object()}}}, r"params\.custom_params cannot be sent"),
        ({"params": {"custom_params": {"x": 2**70}}}, r"params\.custom_params cannot be sent"),
        ({"params": {"sampling_seed": 2**70}}, r"sampling_params\.sampling_seed cannot be sent"),
        ({"session_params": {"id": "\ud800"}}, "session_params cannot be sent"),
    ],
)
def test_nothing_is_sent_that_the_scheduler_cannot_read(
    arguments: dict[str, Any], text: str
) -> None:
    prompt = ["a"] if "rid" in arguments else "a"
    with pytest.raises(ValueError, match=text):
        read(prompt, **arguments)


def test_ids_of_vectors_are_texts() -> None:
    with pytest.raises(ValueError, match=r"at `\$.rid`"):
        embedding_request(served(), {"prompt": ["a"], "input_ids": None}, rid=[5])  # type: ignore[list-item]


def test_unknown_keyword_is_a_type_error_with_the_nearest() -> None:
    with pytest.raises(TypeError, match="'return_logprobs'; did you mean 'return_logprob'"):
        read("a", return_logprobs=True)


def test_embedding_asks_for_vectors_of_all_prompts() -> None:
    request = embedding_request(served(), {"prompt": ["a", "bc"], "input_ids": None}, "e")
    entries = [prompt.inputs[0] for prompt in request.prompts]
    assert [(e.rid, e.input_ids) for e in entries] == [("e_0", ids_of("a")), ("e_1", ids_of("bc"))]
    assert all(e.wants_embedding and e.sampling.max_new_tokens == 0 for e in entries)
    assert request.as_list
