"""Bad input gets a quick, clear answer that names the field; the server keeps serving."""

import json

import pytest

from tests.e2e.conftest import Pool
from tests.e2e.processes import call

MESSAGES = [{"role": "user", "content": "hi"}]
NEST = "[" * 100_000 + "]" * 100_000

CHAT = [
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "wizard", "content": "hi"}]}, "role"),
    ({"messages": [{"role": "user", "content": 5}]}, "content"),
    ({"messages": MESSAGES, "temperature": "hot"}, "temperature"),
    ({"messages": MESSAGES, "temperature": -1}, "temperature"),
    ({"messages": MESSAGES, "top_p": 0}, "top_p"),
    ({"messages": MESSAGES, "top_p": 1.5}, "top_p"),
    ({"messages": MESSAGES, "top_k": 0.01}, "top_k"),
    ({"messages": MESSAGES, "top_k": "5"}, "top_k"),
    ({"messages": MESSAGES, "n": 0}, "n"),
    ({"messages": MESSAGES, "n": 1.5}, "n"),
    ({"messages": MESSAGES, "n": 100_000}, "n"),
    ({"messages": MESSAGES, "max_tokens": -1}, "max_tokens"),
    ({"messages": MESSAGES, "max_tokens": 3.7}, "max_tokens"),
    ({"messages": MESSAGES, "max_tokens": 10_000_000}, "max_tokens"),
    ({"messages": MESSAGES, "seed": 1.5}, "seed"),
    ({"messages": MESSAGES, "frequency_penalty": 3}, "frequency_penalty"),
    ({"messages": MESSAGES, "presence_penalty": -3}, "presence_penalty"),
    ({"messages": MESSAGES, "stop": ["x"] * 200}, "stop"),
    ({"messages": MESSAGES, "stop": 7}, "stop"),
    ({"messages": MESSAGES, "logit_bias": {"abc": 1}}, "logit_bias"),
    ({"messages": MESSAGES, "logit_bias": {"99999999": 1}}, "logit_bias"),
    ({"messages": MESSAGES, "top_logprobs": 5}, "top_logprobs"),
    ({"messages": MESSAGES, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"messages": MESSAGES, "stream": "yes"}, "stream"),
    ({"messages": MESSAGES, "stream_options": {"include_usage": True}}, "stream_options"),
    ({"messages": MESSAGES, "functions": [{"name": "f"}]}, "functions"),
    ({"messages": MESSAGES, "response_format": {"type": "yaml"}}, "response_format"),
]
GENERATE = [
    ({}, "text"),
    ({"text": "a", "input_ids": [1]}, "text"),
    ({"input_ids": []}, "input_ids"),
    ({"input_ids": [-1]}, "input_ids"),
    ({"input_ids": [10_000_000]}, "input_ids"),
    ({"input_ids": [1.5]}, "input_ids"),
    ({"text": ""}, "text"),
    ({"text": ["a"] * 5000}, "text"),
    ({"text": "a", "sampling_params": {"max_new_tokens": -1}}, "max_new_tokens"),
    ({"text": "a", "sampling_params": {"temperature": -0.5}}, "temperature"),
    ({"text": "a", "sampling_params": {"min_p": 2}}, "min_p"),
    ({"text": "a", "sampling_params": {"repetition_penalty": 0}}, "repetition_penalty"),
    ({"text": "a", "sampling_params": {"stop_token_ids": [-5]}}, "stop_token_ids"),
    (
        {"text": "a", "sampling_params": {"min_new_tokens": 9, "max_new_tokens": 3}},
        "min_new_tokens",
    ),
    ({"text": "a", "sampling_params": {"regex": "a+("}}, "regex"),
    ({"text": "a", "lora_path": "nobody"}, "--enable-lora"),
    ({"text": ["a", "b"], "rid": ["only one"]}, "rid"),
    ({"text": "a", "return_logprob": True, "top_logprobs_num": -1}, "top_logprobs_num"),
]
RAW = [
    (b"", 400),
    (b"{", 400),
    (b"[]", 400),
    (b"null", 400),
    (b'{"messages": [{"role":"user","content":"\xff\xfe"}]}', 400),
    (b'{"messages": [{"role":"user","content":"x"}], "temperature": NaN}', 400),
    (f'{{"messages": {NEST}}}'.encode(), 400),
]


def check_error(reply, field: str) -> None:
    error = reply["error"]
    assert field in f"{error['message']} {error['param']}"
    assert {"message", "type", "param", "code"} <= set(error)


@pytest.fixture(autouse=True)
def keeps_serving(pool: Pool):
    yield
    body = {"text": "still", "sampling_params": {"max_new_tokens": 2}}
    status, reply, _ = call(f"{pool.url}/generate", body)
    assert (status, reply["meta_info"]["completion_tokens"]) == (200, 2)


@pytest.mark.parametrize("body,field", CHAT, ids=lambda v: str(v)[:40])
def test_chat_names_the_field(pool: Pool, body, field: str) -> None:
    status, reply, _ = call(f"{pool.url}/v1/chat/completions", {"model": pool.model, **body})
    assert status == 400, reply
    check_error(reply, field)


@pytest.mark.parametrize("body,field", GENERATE, ids=lambda v: str(v)[:40])
def test_generate_names_the_field(pool: Pool, body, field: str) -> None:
    status, reply, _ = call(f"{pool.url}/generate", body)
    assert status == 400, reply
    check_error(reply, field)


@pytest.mark.parametrize("raw,want", RAW, ids=lambda v: str(v)[:30])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/generate"])
def test_broken_bodies(pool: Pool, path: str, raw: bytes, want: int) -> None:
    status, reply, _ = call(f"{pool.url}{path}", raw=raw)
    assert status == want, reply
    assert reply["error"]["message"]


def test_prompt_that_is_too_long_names_both_numbers(pool: Pool) -> None:
    ids = [5] * 9000
    status, reply, _ = call(f"{pool.url}/generate", {"input_ids": ids})
    assert status == 400
    assert "9000" in reply["error"]["message"] and "8192" in reply["error"]["message"]
    for stream in (False, True):
        body = {"model": pool.model, "prompt": [5] * 4096, "max_tokens": 8192, "stream": stream}
        status, reply, _ = call(f"{pool.url}/v1/completions", body)
        assert status == 400
        assert "8192" in reply["error"]["message"]


def test_unknown_paths_and_methods_answer_json(pool: Pool) -> None:
    status, reply, _ = call(f"{pool.url}/v1/nothing")
    assert (status, reply["error"]["code"]) == (404, "not_found")
    status, reply, _ = call(f"{pool.url}/v1/chat/completions", method="GET")
    assert status == 405
    assert reply["error"]["message"]


def test_wrong_content_type_is_refused_on_the_openai_side(pool: Pool) -> None:
    raw = json.dumps({"model": pool.model, "messages": MESSAGES}).encode()
    status, reply, _ = call(
        f"{pool.url}/v1/chat/completions", raw=raw, headers={"content-type": "text/plain"}
    )
    assert status == 400
    assert "application/json" in reply["error"]["message"]


def test_refusals_of_urls_and_headers_answer_json(pool: Pool) -> None:
    for path in ("/v1/models/%ff", "/workers/%ff"):
        status, reply, _ = call(f"{pool.url}{path}")
        assert (status, reply["error"]["code"]) == (400, "invalid_url")
    for path in ("/v1/chat/completions", "/generate"):
        status, reply, _ = call(
            f"{pool.url}{path}", raw=b"\x1f\x8b\x08", headers={"content-encoding": "gzip"}
        )
        assert status == 415
        assert "`gzip`" in reply["error"]["message"]


def test_a_megabyte_of_a_name_is_not_repeated(pool: Pool) -> None:
    for path, body in (
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/generate", {"text": "hi"}),
    ):
        status, reply, _ = call(f"{pool.url}{path}", {**body, "model": "x" * (1 << 20)})
        assert status == 404
        assert "1048576 characters" in reply["error"]["message"]
        assert len(json.dumps(reply)) < 500
