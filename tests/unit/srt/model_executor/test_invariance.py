"""Parts of a model give a row the same bits whatever stands beside it."""

from typing import Any

import pytest
import torch
from torch import nn

from sglang.srt.configs.experts_config import ExpertsConfig
from sglang.srt.configs.latent_config import LatentConfig
from sglang.srt.layers.activation import gated_activation
from sglang.srt.layers.latent_projection import LatentProjection
from sglang.srt.layers.layernorm import CenteredRMSNorm, RMSNorm
from sglang.srt.layers.linear import Linear
from sglang.srt.layers.moe import BiasedSigmoidRouter, ExpertRouter, MixtureOfExperts
from sglang.srt.layers.vocab_embedding import LMHead
from sglang.srt.model_executor.invariance import compute_invariantly
from sglang.srt.model_executor.row_pieces import PRODUCT_ROWS, in_one_thread, in_tiles

ROWS = (1, 2, 3, PRODUCT_ROWS, PRODUCT_ROWS + 1, 75)


def bits(x: Any) -> list[bytes]:
    parts = x if isinstance(x, tuple) else (x,)
    return [part.contiguous().view(torch.uint8).numpy().tobytes() for part in parts]


def assert_invariant(module: nn.Module, x: torch.Tensor, tolerance: float = 1e-4) -> None:
    plain = module(x.clone())
    compute_invariantly(module)
    whole = module(x.clone())
    for a, b in zip(*(y if isinstance(y, tuple) else (y,) for y in (plain, whole)), strict=True):
        assert torch.allclose(a.float(), b.float(), rtol=tolerance, atol=tolerance)
    for num_rows in ROWS:
        for rows in (slice(num_rows), slice(-num_rows, None)):
            own = tuple(y[rows] for y in whole) if isinstance(whole, tuple) else whole[rows]
            assert bits(module(x[rows].clone())) == bits(own)


def filled(module: nn.Module, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    for part in module.modules():
        for parameter in part.parameters(recurse=False):
            parameter.data = torch.randn(parameter.shape).to(dtype) / parameter.shape[-1] ** 0.5
    for part in module.modules():
        if isinstance(part, Linear):
            part.finish_loading()
    return module


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(64, 48), (1536, 576)])
def test_products(shape: tuple[int, int], dtype: torch.dtype) -> None:
    linear = filled(Linear(*shape, bias=True), dtype)
    assert_invariant(linear, torch.randn(max(ROWS), shape[0]).to(dtype), 0.05)


@pytest.mark.parametrize("cap", [0.0, 5.0])
def test_heads(cap: float) -> None:
    head = filled(LMHead(96, 50_010, 50_005, cap))
    assert_invariant(head, torch.randn(max(ROWS), 96))


@pytest.mark.parametrize("name", ["silu", "gelu_pytorch_tanh"])
@pytest.mark.parametrize("size", [50, 1536, 40_000])
def test_activations(name: str, size: int) -> None:
    torch.manual_seed(0)
    activation = gated_activation(name, torch.device("cpu"))
    assert_invariant(activation, torch.randn(max(ROWS), 2 * size))


@pytest.mark.parametrize("norm", [RMSNorm, CenteredRMSNorm])
def test_norms(norm: type[RMSNorm]) -> None:
    assert_invariant(filled(norm(2304, 1e-5)), torch.randn(max(ROWS), 2304))


EXPERTS = ExpertsConfig(num_experts=8, num_per_token=3, intermediate_size=32)


@pytest.mark.parametrize("router", [ExpertRouter, BiasedSigmoidRouter])
def test_mixtures_of_experts(router: type[ExpertRouter]) -> None:
    experts = filled(MixtureOfExperts(64, EXPERTS, "silu", router(64, EXPERTS)))
    assert_invariant(experts, torch.randn(max(ROWS), 64))


class Both(nn.Module):
    """A latent projection from one end to the other."""

    def __init__(self) -> None:
        super().__init__()
        config = LatentConfig(
            q_lora_rank=None,
            kv_lora_rank=64,
            qk_nope_head_dim=32,
            qk_rope_head_dim=16,
            v_head_dim=32,
        )
        self.projection = LatentProjection(4, config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.projection.values(self.projection.absorb(x.view(-1, 4, 32)))


def test_latent_projections() -> None:
    assert_invariant(filled(Both()), torch.randn(max(ROWS), 128))


def test_a_part_without_such_a_form_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="Conv1d, a part of this model"):
        compute_invariantly(nn.Sequential(Linear(4, 4), nn.Conv1d(1, 1, 1)))


def test_every_product_has_the_same_number_of_rows() -> None:
    seen: list[int] = []
    x = torch.randn(75, 4)
    assert torch.equal(in_tiles(lambda tile: (seen.append(len(tile)), tile)[1], x), x)
    assert set(seen) == {PRODUCT_ROWS}


def test_no_piece_is_large_enough_for_two_threads() -> None:
    seen: list[int] = []
    x = torch.randn(100, 1000)
    assert torch.equal(in_one_thread(lambda rows: (seen.append(rows.numel()), rows)[1], x), x)
    assert len(seen) > 1
    assert max(seen) < 32768
