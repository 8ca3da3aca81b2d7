"""Qwen3, with and without experts, is transformers' model."""

from typing import Any

import pytest
from transformers import (
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from tests.unit.srt.models.driver import Driver
from tests.unit.srt.models.reference import CHECKS, save_reference

DENSE, MIXED = (Qwen3Config, Qwen3ForCausalLM), (Qwen3MoeConfig, Qwen3MoeForCausalLM)
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
VARIANTS: dict[str, tuple[tuple[Any, Any], dict[str, Any]]] = {
    "tied": (DENSE, {"tie_word_embeddings": True, "head_dim": 32}),
    "windows": (
        DENSE,
        {"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1},
    ),
    "biases": (DENSE, {"attention_bias": True, "head_dim": 16}),
    "experts": (MIXED, {**EXPERTS, "norm_topk_prob": True}),
    "some_experts": (MIXED, {**EXPERTS, "decoder_sparse_step": 2}),
    "one_plain_layer": (MIXED, {**EXPERTS, "mlp_only_layers": [1]}),
}
PLAIN_LAYERS = {"experts": [], "some_experts": [0, 2], "one_plain_layer": [1]}


@pytest.fixture(scope="module", params=VARIANTS)
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Driver, PreTrainedModel]:
    folder = tmp_path_factory.mktemp("model")
    classes, options = VARIANTS[request.param]
    sizes = {"num_key_value_heads": 2, "head_dim": 16}
    model = save_reference(folder, *classes, **{**sizes, **options})
    return request.param, Driver(folder), model


@pytest.mark.parametrize("check", CHECKS)
def test_equals_the_reference(check: str, case: tuple[str, Driver, PreTrainedModel]) -> None:
    _, driver, model = case
    driver.clear()
    CHECKS[check](driver, model)


def test_layers_without_experts(case: tuple[str, Driver, PreTrainedModel]) -> None:
    name, driver, _ = case
    experts = driver.runner.model_config.experts
    plain = None if experts is None else sorted(experts.dense_layers)
    assert plain == PLAIN_LAYERS.get(name)
