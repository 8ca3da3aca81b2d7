"""Normalization, activation and rotation: kernel and twin give the same numbers."""

import pytest
import torch

from sglang.kernels.rms_norm import (
    add_rms_norm_torch,
    add_rms_norm_triton,
    rms_norm_torch,
    rms_norm_triton,
)
from sglang.kernels.rotary import rotate_torch, rotate_triton
from sglang.kernels.silu_and_mul import silu_and_mul_torch, silu_and_mul_triton

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# In units of the last bit. The interpreter cuts bits off where a GPU rounds to bfloat16.
TOLERANCE = {torch.float32: 2, torch.float16: 2, torch.bfloat16: 8}
SIZES = [(1, 8), (3, 96), (2, 576), (5, 1500)]
EPS = 1e-5


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(5)


def close(ours: torch.Tensor, twin: torch.Tensor) -> None:
    assert ours.dtype == twin.dtype and ours.shape == twin.shape
    limit = TOLERANCE[twin.dtype] * torch.finfo(twin.dtype).eps
    torch.testing.assert_close(ours, twin, rtol=limit, atol=limit)


def rows_of(table: torch.Tensor, size: int) -> torch.Tensor:
    """The middle columns: rows that do not follow each other in memory."""
    return table[:, 5 : 5 + size]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), SIZES)
def test_rms_norm(rows: int, size: int, dtype: torch.dtype) -> None:
    x, weight = torch.randn(rows, size).to(dtype), torch.rand(size).to(dtype) + 0.5
    close(rms_norm_triton(x, weight, EPS), rms_norm_torch(x, weight, EPS))


def test_rms_norm_of_rows_apart_and_of_heads() -> None:
    weight = torch.rand(96)
    apart = rows_of(torch.randn(4, 120), 96)
    close(rms_norm_triton(apart, weight, EPS), rms_norm_torch(apart, weight, EPS))
    heads = torch.randn(3, 5, 96)
    close(rms_norm_triton(heads, weight, EPS), rms_norm_torch(heads, weight, EPS))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), SIZES)
def test_add_rms_norm(rows: int, size: int, dtype: torch.dtype) -> None:
    residual, weight = torch.randn(rows, size).to(dtype), torch.rand(size).to(dtype) + 0.5
    update = rows_of(torch.randn(rows, size + 9).to(dtype), size)
    for_twin = residual.clone()
    ours = add_rms_norm_triton(residual, update, weight, EPS)
    close(ours, add_rms_norm_torch(for_twin, update, weight, EPS))
    close(residual, for_twin)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), SIZES)
def test_silu_and_mul(rows: int, size: int, dtype: torch.dtype) -> None:
    gate_up = rows_of((torch.randn(rows, 2 * size + 7) * 4).to(dtype), 2 * size)
    ours = silu_and_mul_triton(gate_up)
    assert ours.is_contiguous()
    close(ours, silu_and_mul_torch(gate_up.clone()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("num_tokens", "num_heads", "head_dim"), [(1, 1, 8), (4, 9, 64), (3, 20, 24)]
)
def test_rotate(num_tokens: int, num_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    angles = torch.rand(num_tokens, 1, head_dim // 2) * 100
    cos = torch.cat((angles.cos(), angles.cos()), -1).to(dtype)
    sin = torch.cat((-angles.sin(), angles.sin()), -1).to(dtype)
    projected = rows_of(
        torch.randn(num_tokens, num_heads * head_dim + 11).to(dtype), num_heads * head_dim
    )
    heads = projected.view(num_tokens, num_heads, head_dim)
    ours = rotate_triton(heads, cos, sin)
    assert ours.is_contiguous()
    close(ours, rotate_torch(heads, cos, sin))
