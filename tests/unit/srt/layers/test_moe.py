"""Which experts a token takes, and that its neighbours do not matter."""

import pytest
import torch
from torch import nn

from sglang.srt.configs.experts_config import ExpertsConfig
from sglang.srt.layers.activation import gated_activation
from sglang.srt.layers.linear import Linear
from sglang.srt.layers.moe import BiasedSigmoidRouter, ExpertRouter, MixtureOfExperts

HIDDEN = 6


def router(cls: type[ExpertRouter], logits: list[float], **options: object) -> ExpertRouter:
    """Gives these logits to the token of ones."""
    config = ExpertsConfig(len(logits), intermediate_size=4, **options)  # type: ignore[arg-type]
    made = cls(HIDDEN, config)
    made.weight.data = torch.tensor(logits).unsqueeze(1).expand(-1, HIDDEN) / HIDDEN
    return made


def chosen(made: ExpertRouter) -> dict[int, float]:
    weights, ids = made(torch.ones(1, HIDDEN))
    return dict(zip(ids[0].tolist(), weights[0].tolist(), strict=True))


def test_best_experts_are_taken_with_their_shares() -> None:
    found = chosen(router(ExpertRouter, [1.0, 3.0, 2.0, 0.0], num_per_token=2, weight_scale=2.0))
    shares = torch.softmax(torch.tensor([1.0, 3.0, 2.0, 0.0]), 0)
    assert found == pytest.approx({1: 2 * shares[1].item(), 2: 2 * shares[2].item()})


def test_normalized_weights_add_up_to_the_scale() -> None:
    made = router(
        ExpertRouter, [1.0, 3.0, 2.0], num_per_token=2, normalizes_weights=True, weight_scale=2.5
    )
    assert sum(chosen(made).values()) == pytest.approx(2.5)


def test_group_with_the_best_expert_comes_first() -> None:
    logits = [0.0, 5.0, 4.0, 4.0, 1.0, 1.0]
    groups = {"num_groups": 3, "num_groups_per_token": 1}
    assert set(chosen(router(ExpertRouter, logits, num_per_token=2, **groups))) == {0, 1}


def test_group_with_the_best_two_experts_comes_first() -> None:
    logits = [-5.0, 2.0, 1.0, 1.0, 0.0, 0.0]
    groups = {"num_groups": 3, "num_groups_per_token": 1}
    assert set(chosen(router(BiasedSigmoidRouter, logits, num_per_token=2, **groups))) == {2, 3}


def test_bias_decides_who_is_taken_but_not_the_weight() -> None:
    made = router(BiasedSigmoidRouter, [0.0, 3.0], num_per_token=1)
    assert isinstance(made, BiasedSigmoidRouter)
    made.e_score_correction_bias.data = torch.tensor([1.0, 0.0])
    assert chosen(made) == pytest.approx({0: 0.5})


@pytest.mark.parametrize("shared", [0, 8])
def test_sum_of_a_token_is_that_of_its_experts_one_by_one(shared: int) -> None:
    torch.manual_seed(3)
    config = ExpertsConfig(5, 3, intermediate_size=4, shared_intermediate_size=shared)
    moe = MixtureOfExperts(HIDDEN, config, "silu", ExpertRouter(HIDDEN, config))
    fill(moe)
    x = torch.randn(9, HIDDEN)
    weights, ids = moe.gate(x)
    wanted = torch.zeros_like(x) if moe.shared_experts is None else moe.shared_experts(x)
    for token in range(len(x)):
        for weight, expert in zip(weights[token], ids[token].tolist(), strict=True):
            wanted[token] += weight * moe.experts[expert](x[token : token + 1])[0]
    assert torch.allclose(moe(x), wanted, atol=1e-5)
    assert torch.allclose(moe(x[4:5]), moe(x)[4:5], atol=1e-6)


def fill(module: nn.Module) -> None:
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    for part in module.modules():
        if isinstance(part, Linear):
            part.finish_loading()


def test_unknown_activation_is_refused_with_the_known() -> None:
    with pytest.raises(ValueError, match="'relu' is not supported.*silu, gelu_pytorch_tanh"):
        gated_activation("relu", torch.device("cpu"))
