"""Admission refuses what the pool and the engine cannot serve; the rest was checked before."""

import dataclasses
import json

import dill
import pytest

from sglang.srt.managers.admission import Limits, Refused, admit
from sglang.srt.sampling.custom_logit_processor import DisallowedTokensLogitsProcessor
from tests.unit.srt.managers.engine import VOCAB, generate, prompt_of

LIMITS = Limits(context_len=128, pool_len=64, vocab_size=VOCAB, eos_token_ids=frozenset())


@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        ([], {}),
        (prompt_of(128), {}),
        ([1, VOCAB], {}),
        ([-1, 1], {}),
        ([1, 2], {"logprob_start_len": 3}),
        ([1, 2], {"logprob_start_len": -2}),
    ],
)
def test_mistake_that_the_launcher_should_have_answered_is_one_of_ours(
    prompt: list[int], options: dict[str, int]
) -> None:
    with pytest.raises(AssertionError):
        admit(generate("r", prompt, 1, **options), LIMITS)


def test_prompt_longer_than_the_pool_is_refused() -> None:
    with pytest.raises(Refused, match=r"65 tokens.*64 tokens"):
        admit(generate("r", prompt_of(65), 1), LIMITS)


@pytest.mark.parametrize("constraint", ["json_schema", "regex", "ebnf", "structural_tag"])
def test_constraint_is_refused_by_name(constraint: str) -> None:
    with pytest.raises(Refused, match=constraint):
        admit(generate("r", [1], 1, **{constraint: "x"}), LIMITS)


def test_answer_is_limited_by_the_pool() -> None:
    assert admit(generate("r", prompt_of(60), 50), LIMITS).max_new_tokens == 5


def test_embedding_is_refused_by_an_engine_that_generates() -> None:
    with pytest.raises(Refused, match="--is-embedding"):
        admit(generate("r", [1], 0, wants_embedding=True), LIMITS)


def test_generation_is_refused_by_an_engine_that_embeds() -> None:
    limits = dataclasses.replace(LIMITS, is_embedding=True)
    with pytest.raises(Refused, match="started with --is-embedding and generates no text"):
        admit(generate("r", [1], 1), limits)
    assert admit(generate("r", [1], 0, wants_embedding=True), limits).wants_embedding


def test_registered_processor_is_used_by_name_with_the_request_in_its_params() -> None:
    wish = generate(
        "r", [1], 1, custom_logit_processor="disallowed_tokens", custom_params={"token_ids": [3]}
    )
    req = admit(wish, LIMITS)
    assert isinstance(req.logit_processor, DisallowedTokensLogitsProcessor)
    assert req.logit_processor_params == {"token_ids": [3], "__req__": req}
    assert not req.has_uploaded_processor


def test_uploaded_processor_needs_the_flag() -> None:
    text = json.dumps({"callable": dill.dumps(DisallowedTokensLogitsProcessor).hex()})
    wish = generate("r", [1], 1, custom_logit_processor=text)
    with pytest.raises(Refused, match="--enable-custom-logit-processor") as refusal:
        admit(wish, LIMITS)
    assert refusal.value.reason.status_code == 400
    req = admit(wish, dataclasses.replace(LIMITS, allows_uploaded_processors=True))
    assert isinstance(req.logit_processor, DisallowedTokensLogitsProcessor)
    assert req.has_uploaded_processor
