"""DeepSeek V2 and V3 are transformers' models, though ours keeps latents and never expands them."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    PreTrainedModel,
)

from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool
from sglang.srt.models.deepseek_v2 import latent_of, pairs_to_halves
from tests.unit.srt.models.driver import Driver
from tests.unit.srt.models.reference import CHECKS, save_reference

YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 10000.0,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.7,
    "mscale_all_dim": 0.9,
}
SIZES = {
    "num_key_value_heads": 6,
    "q_lora_rank": 40,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "moe_intermediate_size": 48,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
}
IN_GROUPS = {"n_group": 4, "topk_group": 2}
V2, V3 = (DeepseekV2Config, DeepseekV2ForCausalLM), (DeepseekV3Config, DeepseekV3ForCausalLM)
VARIANTS: dict[str, tuple[tuple[Any, Any], dict[str, Any]]] = {
    "lite": (V2, {"q_lora_rank": None, "topk_method": "greedy"}),
    "groups": (
        V2,
        {"topk_method": "group_limited_greedy", "routed_scaling_factor": 4.0, **IN_GROUPS},
    ),
    "yarn": (V2, {"rope_parameters": YARN, "attention_bias": True}),
    "v3": (V3, {"rope_parameters": YARN, "norm_topk_prob": True, **IN_GROUPS}),
}


@pytest.fixture(scope="module", params=VARIANTS)
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Driver, PreTrainedModel]:
    folder = tmp_path_factory.mktemp("model")
    classes, options = VARIANTS[request.param]
    model = save_reference(folder, *classes, **{**SIZES, **options})
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            torch.nn.init.normal_(buffer, std=0.3)
    model.save_pretrained(folder)
    return Driver(folder), model


@pytest.mark.parametrize("check", CHECKS)
def test_equals_the_reference(check: str, case: tuple[Driver, PreTrainedModel]) -> None:
    driver, model = case
    driver.clear()
    CHECKS[check](driver, model)


def test_one_latent_is_kept_per_token_and_layer(case: tuple[Driver, PreTrainedModel]) -> None:
    driver, _ = case
    pool = driver.memory.token_to_kv_pool
    assert isinstance(pool, MLATokenToKVPool)
    assert driver.runner.kv_dims.cell_bytes == 3 * (24 + 8) * 4
    assert pool.get_key_buffer(0).shape[1:] == (1, 32)
    assert pool.get_value_buffer(0).shape[1:] == (1, 24)


def test_heads_of_pairs_become_heads_of_halves() -> None:
    rows = torch.tensor([[10, 11, 0, 1, 2, 3]]).unsqueeze(-1)
    assert pairs_to_halves(rows, 4).flatten().tolist() == [10, 11, 0, 2, 1, 3]


def test_weights_of_further_predictions_are_left_out(
    case: tuple[Driver, PreTrainedModel],
) -> None:
    driver, _ = case
    names = ["model.layers.2.self_attn.o_proj.weight", "model.layers.3.eh_proj.weight"]
    found = driver.runner.model.prepared((name, torch.zeros(1)) for name in names)
    assert [name for name, _ in found] == names[:1]


def test_configuration_without_a_latent_is_refused_by_name(
    case: tuple[Driver, PreTrainedModel],
) -> None:
    config = replace(case[0].runner.model_config, latent=None)
    with pytest.raises(ValueError, match="lacks kv_lora_rank"):
        latent_of(config)
