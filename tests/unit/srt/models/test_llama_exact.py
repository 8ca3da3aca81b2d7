"""Our Llama and its kin and transformers', with the same random weights, are one function."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from tests.unit.srt.models import reference
from tests.unit.srt.models.driver import Driver, make_req
from tests.unit.srt.models.reference import (
    NUM_TOKENS,
    prompts,
    reference_answers,
    reference_logits,
)

VARIANTS: dict[str, dict[str, Any]] = {
    "grouped": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "multi_head_untied": {"num_key_value_heads": 6, "tie_word_embeddings": False},
    "biases": {
        "num_key_value_heads": 3,
        "tie_word_embeddings": True,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "wide_heads": {"num_key_value_heads": 2, "tie_word_embeddings": False, "head_dim": 32},
    "llama3_rope": {
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
            "rope_theta": 10000.0,
        },
    },
    "linear_rope": {
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
        "rope_scaling": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
    },
    "qwen2": {"family": "qwen2", "num_key_value_heads": 2, "tie_word_embeddings": True},
}
FAMILIES: dict[str, tuple[type[PretrainedConfig], type[PreTrainedModel]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
}


@pytest.fixture(scope="module", params=VARIANTS)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Driver, PreTrainedModel]:
    folder = tmp_path_factory.mktemp("model")
    model = save_reference(folder, **VARIANTS[request.param])
    return Driver(folder), model


def save_reference(folder: Path, family: str = "llama", **options: Any) -> PreTrainedModel:
    return reference.save_reference(folder, *FAMILIES[family], draw_norms=False, **options)


@pytest.fixture
def sides(pair: tuple[Driver, PreTrainedModel]) -> Iterator[tuple[Driver, PreTrainedModel]]:
    """The pair, with empty pools."""
    yield pair
    pair[0].clear()


def test_logits_of_the_last_position_agree(sides: tuple[Driver, PreTrainedModel]) -> None:
    driver, model = sides
    for prompt in prompts():
        ours = driver.logits(driver.admit(make_req(prompt)))
        assert torch.allclose(ours, reference_logits(model, prompt)[-1], atol=1e-4, rtol=0)


def test_greedy_tokens_agree_alone(sides: tuple[Driver, PreTrainedModel]) -> None:
    driver, model = sides
    for prompt, wanted in zip(prompts(), reference_answers(model), strict=True):
        [ours] = driver.generate([driver.admit(make_req(prompt))], NUM_TOKENS)
        assert ours == wanted


@pytest.mark.parametrize("chunk", [None, 1, 16])
def test_greedy_tokens_agree_in_one_batch_of_any_lengths(
    sides: tuple[Driver, PreTrainedModel], chunk: int | None
) -> None:
    driver, model = sides
    reqs = [driver.admit(make_req(prompt)) for prompt in prompts()]
    answers = driver.generate(reqs, NUM_TOKENS, chunk)
    assert [ours[:NUM_TOKENS] for ours in answers] == reference_answers(model)


def test_requests_that_leave_and_join_do_not_disturb_the_others(
    sides: tuple[Driver, PreTrainedModel],
) -> None:
    driver, _ = sides
    alone = [driver.generate([driver.admit(make_req(prompt))], 60)[0] for prompt in prompts()]
    driver.clear()
    first, leaving, joining, second, third = (make_req(prompt) for prompt in prompts())
    early = [first, leaving, second, third]
    driver.generate([driver.admit(req) for req in early], 6)
    driver.memory.req_to_token_pool.free(leaving)
    staying = [first, second, third]
    for _ in range(5):
        driver.decode(staying)
    driver.extend([driver.admit(joining)])
    for _ in range(45):  # longer than copies of K and V have room for
        driver.decode([*staying, joining])
    for req, wanted in zip(
        (first, joining, second, third), (alone[i] for i in (0, 2, 3, 4)), strict=True
    ):
        assert req.output_ids == wanted[: len(req.output_ids)]
        assert len(req.output_ids) >= 46


@pytest.mark.parametrize("cached", [1, 20, 39])
def test_cached_prefix_changes_nothing(sides: tuple[Driver, PreTrainedModel], cached: int) -> None:
    driver, model = sides
    prompt = prompts()[3]
    first = driver.admit(make_req(prompt))
    driver.generate([first], NUM_TOKENS)
    second = driver.admit(make_req(prompt), cached_from=first, cached=cached)
    [ours] = driver.generate([second], NUM_TOKENS)
    assert ours == reference_answers(model)[3]


def test_prompt_logprobs_are_the_reference_distribution(
    sides: tuple[Driver, PreTrainedModel],
) -> None:
    driver, model = sides
    prompt = prompts()[4]
    req = driver.admit(make_req(prompt, return_logprob=True, top_logprobs_num=3))
    rows = driver.extend([req], logprobs=True).input_logprobs[0]
    wanted = reference_logits(model, prompt).log_softmax(-1)
    assert rows.token_ids == prompt[1:]
    expected = wanted[torch.arange(len(prompt) - 1), prompt[1:]]
    assert torch.allclose(torch.tensor(rows.logprobs), expected, atol=1e-4)
    assert [row.token_ids for row in rows.top] == wanted[:-1].topk(3).indices.tolist()


def test_chunks_report_their_own_prompt_logprobs(sides: tuple[Driver, PreTrainedModel]) -> None:
    driver, _ = sides
    prompt = prompts()[4]
    req = driver.admit(make_req(prompt, return_logprob=True))
    token_ids: list[int] = []
    while not req.output_ids:
        token_ids += driver.extend([req], chunk=32, logprobs=True).input_logprobs[0].token_ids
    assert token_ids == prompt[1:]


def test_output_logprobs_are_the_models_own(sides: tuple[Driver, PreTrainedModel]) -> None:
    driver, model = sides
    prompt = prompts()[2]
    options = {"frequency_penalty": 2.0, "logit_bias": {5: 90.0}}
    req = make_req(prompt, return_logprob=True, token_ids_logprob=[9, 2], **options)
    rows = driver.extend([driver.admit(req)]).output_logprobs[0]
    wanted = reference_logits(model, prompt)[-1].log_softmax(-1)
    assert rows.token_ids == [5]
    assert rows.logprobs == pytest.approx([wanted[5].item()], abs=1e-4)
    assert rows.chosen[0].logprobs == pytest.approx(wanted[[9, 2]].tolist(), abs=1e-4)
