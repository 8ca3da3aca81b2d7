"""Writing into the KV pool: kernel and twin leave the same numbers, and touch nothing else."""

import pytest
import torch

from sglang.kernels.kv_copy import copy_pages_torch, copy_pages_triton
from sglang.kernels.kv_store import store_kv_torch, store_kv_triton

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float8_e5m2, torch.float8_e4m3fn]
# KV heads, numbers of a key's head, of a value's head
HEADS = [(1, 16, 16), (3, 64, 64), (2, 24, 8), (9, 128, 128)]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(5)


def pool(page_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(12 * page_size, kv_heads, head_dim).to(dtype)


def projected(num_tokens: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> torch.Tensor:
    """A part of wider rows, as projections give it."""
    wide = torch.randn(num_tokens, kv_heads * head_dim + 40).to(dtype)
    return wide[:, 8 : 8 + kv_heads * head_dim].view(num_tokens, kv_heads, head_dim)


def same(ours: torch.Tensor, twin: torch.Tensor) -> bool:
    return torch.equal(ours.view(torch.uint8), twin.view(torch.uint8))


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kv_heads", "head_dim", "v_head_dim"), HEADS)
def test_store(
    kv_heads: int, head_dim: int, v_head_dim: int, dtype: torch.dtype, page_size: int
) -> None:
    loc = torch.randperm(12 * page_size)[: 3 * page_size + 1]
    new = tuple(projected(len(loc), kv_heads, dim, dtype) for dim in (head_dim, v_head_dim))
    ours = tuple(pool(page_size, kv_heads, dim, dtype) for dim in (head_dim, v_head_dim))
    twin = tuple(buffer.clone() for buffer in ours)
    store_kv_triton(ours, loc, new)
    store_kv_torch(twin, loc, new)
    assert all(same(a, b) for a, b in zip(ours, twin, strict=True))
    assert all(same(a[loc], b.contiguous()) for a, b in zip(ours, new, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_store_into_a_smaller_type(dtype: torch.dtype) -> None:
    loc = torch.tensor([3, 0, 7])
    new = (projected(3, 2, 16, torch.float32) * 1e3, projected(3, 2, 16, torch.float32))
    ours, twin = ([torch.zeros(8, 2, 16, dtype=dtype) for _ in range(2)] for _ in range(2))
    store_kv_triton(tuple(ours), loc, new)
    store_kv_torch(tuple(twin), loc, new)
    for buffer, expected in zip(ours, twin, strict=True):
        assert expected.float().isfinite().all()
        # The interpreter cuts bits off where a GPU rounds to bfloat16.
        limit = torch.finfo(dtype).eps
        torch.testing.assert_close(buffer.float(), expected.float(), rtol=limit, atol=limit)


def test_store_of_one_buffer() -> None:
    """Latents are keys and values at once."""
    ours = torch.zeros(8, 1, 576)
    new = projected(2, 1, 576, torch.float32)
    store_kv_triton((ours,), torch.tensor([6, 1]), (new,))
    assert torch.equal(ours[[6, 1]], new)
    assert not ours[[0, 2, 3, 4, 5, 7]].any()


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kv_heads", "head_dim", "_"), HEADS)
def test_copy_of_pages(
    kv_heads: int, head_dim: int, _: int, dtype: torch.dtype, page_size: int
) -> None:
    ours = pool(page_size, kv_heads, head_dim, dtype)
    before, twin = ours.clone(), ours.clone()
    targets, sources = torch.randperm(12)[:8].chunk(2)
    copy_pages_triton(ours, targets, sources, page_size)
    copy_pages_torch(twin, targets, sources, page_size)
    assert same(ours, twin)
    tokens = torch.arange(page_size)
    for target, source in zip(targets * page_size, sources * page_size, strict=True):
        assert same(ours[target + tokens], before[source + tokens])
    assert not same(ours, before)
