"""A tiny model of transformers with random weights, and checks that ours is the same function."""

import random
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from tests.unit.srt.models.driver import Driver, make_req

VOCAB_SIZE = 301
NUM_TOKENS = 16
LENGTHS = (1, 3, 17, 40, 90)


def save_reference(
    folder: Path,
    config_class: type[PretrainedConfig],
    model_class: type[PreTrainedModel],
    draw_norms: bool = True,
    **options: Any,
) -> PreTrainedModel:
    torch.manual_seed(7)
    sizes = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 96,
        "intermediate_size": 160,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "max_position_embeddings": 256,
        "initializer_range": 0.2,
    }
    model = model_class(config_class(**{**sizes, **options})).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.2)
        elif draw_norms and "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(folder)
    return model


def prompts() -> list[list[int]]:
    generator = random.Random(3)
    return [[generator.randrange(VOCAB_SIZE) for _ in range(length)] for length in LENGTHS]


@torch.no_grad()
def reference_logits(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    return model(torch.tensor([ids])).logits[0]


@lru_cache(maxsize=len(LENGTHS))
def reference_answers(model: PreTrainedModel) -> list[list[int]]:
    """To each of the prompts, greedily."""
    return [_reference_tokens(model, prompt) for prompt in prompts()]


def _reference_tokens(model: PreTrainedModel, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    with torch.no_grad():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=NUM_TOKENS,
            eos_token_id=None,
            pad_token_id=0,
        )
    return out[0, len(prompt) :].tolist()


# ------------------------------------------------------------------ the checks


def _logits_of_the_last_position(driver: Driver, model: PreTrainedModel) -> None:
    for prompt in prompts():
        ours = driver.logits(driver.admit(make_req(prompt)))
        assert torch.allclose(ours, reference_logits(model, prompt)[-1], atol=2e-4, rtol=0)


def _tokens_alone(driver: Driver, model: PreTrainedModel) -> None:
    for prompt, wanted in zip(prompts(), reference_answers(model), strict=True):
        [ours] = driver.generate([driver.admit(make_req(prompt))], NUM_TOKENS)
        assert ours == wanted


def _tokens_in_a_batch(driver: Driver, model: PreTrainedModel, chunk: int | None = None) -> None:
    reqs = [driver.admit(make_req(prompt)) for prompt in prompts()]
    answers = driver.generate(reqs, NUM_TOKENS, chunk)
    assert [ours[:NUM_TOKENS] for ours in answers] == reference_answers(model)


def _tokens_after_a_cached_prefix(driver: Driver, model: PreTrainedModel) -> None:
    prompt = prompts()[4]
    first = driver.admit(make_req(prompt))
    driver.generate([first], NUM_TOKENS)
    reqs = [driver.admit(make_req(prompt), first, cached) for cached in (1, 20, 89)]
    for ours in driver.generate(reqs, NUM_TOKENS):
        assert ours[:NUM_TOKENS] == reference_answers(model)[4]


CHECKS: dict[str, Callable[[Driver, PreTrainedModel], None]] = {
    "logits": _logits_of_the_last_position,
    "alone": _tokens_alone,
    "batch": _tokens_in_a_batch,
    "chunks_of_1": lambda driver, model: _tokens_in_a_batch(driver, model, 1),
    "chunks_of_16": lambda driver, model: _tokens_in_a_batch(driver, model, 16),
    "cached_prefix": _tokens_after_a_cached_prefix,
}
