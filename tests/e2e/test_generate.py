"""The native endpoint `/generate`."""

import json

import pytest

from tests.e2e.conftest import Pool
from tests.e2e.processes import call, events

PROMPT = "The quick brown fox"
GREEDY = {"temperature": 0, "max_new_tokens": 12}


def generate(pool: Pool, **body):
    status, reply, _ = call(f"{pool.url}/generate", {"sampling_params": GREEDY, **body})
    assert status == 200, reply
    return reply


def ids_of(pool: Pool, text: str) -> list[int]:
    status, reply, _ = call(f"{pool.url}/tokenize", {"prompt": text, "add_special_tokens": False})
    assert status == 200
    return reply["tokens"]


def test_text_and_ids_give_the_same(pool: Pool) -> None:
    by_text = generate(pool, text=PROMPT)
    by_ids = generate(pool, input_ids=ids_of(pool, PROMPT))
    assert by_text["text"] == by_ids["text"]
    assert by_text["output_ids"] == by_ids["output_ids"]


def test_meta_info_is_complete(pool: Pool) -> None:
    meta = generate(pool, text=PROMPT, rid="mine")["meta_info"]
    assert meta["id"] == "mine"
    assert meta["finish_reason"] == {"type": "length", "length": 12}
    assert meta["prompt_tokens"] == len(ids_of(pool, PROMPT))
    assert meta["completion_tokens"] == 12
    assert meta["weight_version"] == "default"
    assert meta["e2e_latency"] > 0
    assert {"cached_tokens", "num_retractions", "reasoning_tokens", "dp_rank"} <= set(meta)


def test_logprob_forms(pool: Pool) -> None:
    reply = generate(
        pool, text=PROMPT, return_logprob=True, logprob_start_len=0, top_logprobs_num=2,
        token_ids_logprob=[5, 9], return_text_in_logprobs=True,
    )  # fmt: skip
    meta = reply["meta_info"]
    assert [row[1] for row in meta["input_token_logprobs"]] == ids_of(pool, PROMPT)
    assert meta["input_token_logprobs"][0][0] is None
    assert [row[1] for row in meta["output_token_logprobs"]] == reply["output_ids"]
    assert "".join(row[2] for row in meta["output_token_logprobs"]) == reply["text"]
    assert meta["output_token_logprobs_length"] == 12
    assert all(len(row) == 2 for row in meta["output_top_logprobs"])
    assert meta["input_top_logprobs"][0] is None
    assert [entry[1] for entry in meta["output_token_ids_logprobs"][0]] == [5, 9]
    best = [row[0][1] for row in meta["output_top_logprobs"]]
    assert best == reply["output_ids"]  # greedy


def test_batch_keeps_its_order(pool: Pool) -> None:
    texts = ["one two three", "red green blue", "Monday Tuesday"]
    batch = generate(pool, text=texts)
    assert [r["text"] for r in batch] == [generate(pool, text=t)["text"] for t in texts]
    several = generate(
        pool, text=texts[:2], sampling_params=[GREEDY, {**GREEDY, "max_new_tokens": 3}]
    )
    assert [r["meta_info"]["completion_tokens"] for r in several] == [12, 3]


def test_n_gives_a_list_prompt_by_prompt(pool: Pool) -> None:
    params = {"n": 3, "max_new_tokens": 6, "temperature": 1.0}
    replies = generate(pool, text=PROMPT, sampling_params=params)
    assert len(replies) == 3
    assert len({r["text"] for r in replies}) >= 2


def test_stream_is_cumulative(pool: Pool) -> None:
    whole = generate(pool, text=PROMPT)
    found = events(
        f"{pool.url}/generate", {"text": PROMPT, "sampling_params": GREEDY, "stream": True}
    )
    assert found[-1] == "[DONE]"
    texts = [e["text"] for e in found[:-1]]
    assert all(b.startswith(a) for a, b in zip(texts, texts[1:], strict=False))
    assert texts[-1] == whole["text"]
    assert found[-2]["output_ids"] == whole["output_ids"]
    assert found[-2]["meta_info"]["finish_reason"]["type"] == "length"


def test_streamed_batch_carries_indexes(pool: Pool) -> None:
    found = events(
        f"{pool.url}/generate",
        {"text": ["a b c", "x y z"], "sampling_params": GREEDY, "stream": True},
    )
    assert {e["index"] for e in found[:-1]} == {0, 1}


def test_zero_new_tokens_plant_the_prefix(pool: Pool) -> None:
    prompt = "A prefix that nobody has asked for before, number 4711, and some more words of it."
    planted = generate(pool, text=prompt, sampling_params={"max_new_tokens": 0})
    assert planted["text"] == ""
    assert planted["meta_info"]["completion_tokens"] == 0
    assert planted["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    again = generate(pool, text=prompt + " Go on:")
    assert again["meta_info"]["cached_tokens"] >= planted["meta_info"]["prompt_tokens"] - 1


@pytest.mark.parametrize("content_type", ["application/x-www-form-urlencoded", "text/plain"])
def test_body_is_json_whatever_its_type_says(pool: Pool, content_type: str) -> None:
    raw = json.dumps({"text": PROMPT, "sampling_params": GREEDY}).encode()
    status, reply, _ = call(f"{pool.url}/generate", raw=raw, headers={"content-type": content_type})
    assert status == 200
    assert reply["meta_info"]["completion_tokens"] == 12


def test_ignore_eos_and_minimum_run_to_their_length(pool: Pool) -> None:
    long = generate(pool, text=PROMPT, sampling_params={"max_new_tokens": 64, "ignore_eos": True})
    assert long["meta_info"]["completion_tokens"] == 64
    least = generate(
        pool, text=PROMPT, sampling_params={"min_new_tokens": 20, "max_new_tokens": 40}
    )
    assert least["meta_info"]["completion_tokens"] >= 20


def test_tiny_temperature_is_greedy(pool: Pool) -> None:
    greedy = generate(pool, text=PROMPT)["text"]
    for temperature in (1e-6, 1e-30):
        params = {**GREEDY, "temperature": temperature, "top_p": 0.9}
        assert generate(pool, text=PROMPT, sampling_params=params)["text"] == greedy


def test_namespaces_do_not_share(pool: Pool) -> None:
    prompt = "Namespaces keep their own copies of this sentence about harbours and orchards."
    generate(pool, text=prompt)
    other = generate(pool, text=prompt, extra_key="tenant-a")
    assert other["meta_info"]["cached_tokens"] == 0
    assert other["text"] == generate(pool, text=prompt)["text"]
