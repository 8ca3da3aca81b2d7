"""Attention over scattered slots: kernel and twin agree, and garbage beyond the ends is unseen."""

import pytest
import torch

from sglang.kernels.decode_attention import decode_attention_torch, decode_attention_triton
from sglang.kernels.extend_attention import (
    NewTokens,
    extend_attention_torch,
    extend_attention_triton,
)
from sglang.kernels.paged_kv import PagedKV

# query heads, KV heads, numbers of a head
SHAPES = [
    (2, 2, 16, torch.float32), (6, 2, 32, torch.bfloat16), (9, 3, 64, torch.float32),
    (4, 1, 24, torch.bfloat16), (4, 2, 16, torch.float16),
]  # fmt: skip
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(5)


def pool_of(lens: list[int], kv_heads: int, head_dim: int, dtype: torch.dtype) -> PagedKV:
    """Slots in random order; NaN wherever no request has a token, and a table full of nonsense."""
    num_slots = sum(lens) + 7
    slots = torch.randperm(num_slots)
    buffers = torch.full((2, num_slots, kv_heads, head_dim), torch.nan)
    table = torch.full((len(lens) + 2, max(lens) + 9), 1 << 30, dtype=torch.int32)
    rows = torch.randperm(len(lens) + 2)[: len(lens)]
    for row, length in zip(rows, lens, strict=True):
        own, slots = slots[:length], slots[length:]
        table[row, :length] = own.int()
        buffers[:, own] = torch.randn(2, length, kv_heads, head_dim)
    keys, values = buffers.to(dtype)
    return PagedKV(keys, values, table, rows, torch.tensor(lens))


def queries(num_tokens: int, num_heads: int, head_dim: int, dtype: torch.dtype) -> torch.Tensor:
    """Views into wider rows, as projections give them."""
    wide = torch.randn(num_tokens, num_heads * head_dim + 40).to(dtype)
    return wide[:, 8 : 8 + num_heads * head_dim].view(num_tokens, num_heads, head_dim)


def close(ours: torch.Tensor, twin: torch.Tensor) -> None:
    assert ours.is_contiguous() and ours.dtype == twin.dtype
    limit = TOLERANCE[twin.dtype]
    torch.testing.assert_close(ours, twin, rtol=limit, atol=limit)


@pytest.mark.parametrize(("num_heads", "kv_heads", "head_dim", "dtype"), SHAPES)
def test_decode(num_heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    kv = pool_of([1, 63, 64, 65, 7], kv_heads, head_dim, dtype)
    q = queries(5, num_heads, head_dim, dtype)
    scaling = head_dim**-0.5
    close(decode_attention_triton(q, kv, scaling), decode_attention_torch(q, kv, scaling))


def test_decode_of_sequences_longer_than_a_block_per_part() -> None:
    kv = pool_of([1100, 513, 512], 1, 16, torch.float32)
    q = queries(3, 3, 16, torch.float32)
    close(decode_attention_triton(q, kv, 0.3), decode_attention_torch(q, kv, 0.3))


def test_decode_with_large_scores() -> None:
    kv = pool_of([100, 5], 2, 16, torch.float32)
    q = queries(2, 4, 16, torch.float32) * 200
    ours = decode_attention_triton(q, kv, 1.0)
    close(ours, decode_attention_torch(q, kv, 1.0))


@pytest.mark.parametrize(("num_heads", "kv_heads", "head_dim", "dtype"), SHAPES)
def test_extend(num_heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    # (prefix, new): nothing cached, one new token, block borders.
    check_extend([(0, 5), (9, 1), (60, 70), (64, 64), (0, 1)], num_heads, kv_heads, head_dim, dtype)


def test_extend_of_one_request_without_a_prefix() -> None:
    check_extend([(0, 130)], 2, 1, 16, torch.float32)


def test_extend_of_wide_heads() -> None:
    check_extend([(3, 40)], 2, 1, 160, torch.bfloat16)


def check_extend(
    requests: list[tuple[int, int]],
    num_heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
) -> None:
    news = [new for _, new in requests]
    kv = pool_of([prefix + new for prefix, new in requests], kv_heads, head_dim, dtype)
    starts = torch.tensor([0, *torch.tensor(news).cumsum(0).tolist()])
    q = queries(sum(news), num_heads, head_dim, dtype)
    new = NewTokens(starts, max(news))
    scaling = head_dim**-0.5
    ours = extend_attention_triton(q, kv, new, scaling)
    close(ours, extend_attention_torch(q, kv, new, scaling))
