"""Buffers have a slot for every token and one page for padding."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang.kernels.kv_store import store_kv_torch
from sglang.srt.core.request import Req
from sglang.srt.core.sampling_params import SamplingParams
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from sglang.srt.mem_cache.memory_pool import (
    KVDims,
    PoolSizes,
    ReqToTokenPool,
    build_memory,
    kv_cell_bytes,
)
from sglang.srt.model_executor.model_runner import ModelRunner

DIMS = KVDims(num_layers=2, num_kv_heads=3, head_dim=4, dtype=torch.float32)


def req(rid: str) -> Req:
    return Req(rid, [1], SamplingParams())


def test_cell_bytes_of_llama_3_8b_in_bfloat16() -> None:
    assert kv_cell_bytes(32, 8, 128, 2) == 128 * 1024


@pytest.mark.parametrize(
    ("page_size", "allocator"), [(1, TokenToKVPoolAllocator), (16, PagedTokenToKVPoolAllocator)]
)
def test_memory_is_built_for_whole_pages(page_size: int, allocator: type) -> None:
    memory = build_memory(DIMS, PoolSizes(100, page_size, 5, 64), "cpu")
    tokens = 100 // page_size * page_size
    assert type(memory.token_to_kv_pool_allocator) is allocator
    assert memory.token_to_kv_pool_allocator.available_size() == tokens
    assert memory.token_to_kv_pool_allocator.get_kvcache() is memory.token_to_kv_pool
    assert memory.token_to_kv_pool.get_key_buffer(1).shape == (tokens + page_size, 3, 4)
    assert memory.req_to_token_pool.req_to_token.shape == (6, 64)


def test_written_keys_and_values_are_read_back_per_layer() -> None:
    pool = build_memory(DIMS, PoolSizes(8, 1, 1, 8), "cpu").token_to_kv_pool
    k, v = torch.rand(2, 3, 4), torch.rand(2, 3, 4)
    pool.set_kv_buffer(SimpleNamespace(layer_id=1), torch.tensor([5, 2]), k, v)
    keys, values = pool.get_kv_buffer(1)
    assert torch.equal(keys[[5, 2]], k)
    assert torch.equal(values[[5, 2]], v)
    assert not pool.get_key_buffer(0).any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2, torch.float8_e4m3fn])
def test_stored_numbers_are_rounded_to_the_pools_type_and_never_infinite(
    dtype: torch.dtype,
) -> None:
    dims = KVDims(num_layers=1, num_kv_heads=1, head_dim=4, dtype=dtype)
    pool = build_memory(dims, PoolSizes(8, 1, 1, 8), "cpu").token_to_kv_pool
    k = torch.tensor([[[0.3, -1.0, 1e6, -1e6]]])
    pool.set_kv_buffer(SimpleNamespace(layer_id=0), torch.tensor([5]), k, -k)
    keys, values = (buffer[5, 0].float() for buffer in pool.get_kv_buffer(0))
    assert torch.equal(values, -keys)
    assert keys[:2].tolist() == [float(torch.tensor(0.3).to(dtype)), -1.0]
    assert keys[2] == -keys[3] and keys[2].isfinite()


def test_what_is_stored_is_divided_by_the_scales() -> None:
    pool = build_memory(DIMS, PoolSizes(8, 1, 1, 8), "cpu").token_to_kv_pool
    ones = torch.ones(1, 3, 4)
    pool.set_kv_buffer(SimpleNamespace(layer_id=0), torch.tensor([2]), ones, ones, 2.0, 4.0)
    assert pool.get_key_buffer(0)[2].unique().tolist() == [0.5]
    assert pool.get_value_buffer(0)[2].unique().tolist() == [0.25]


def test_latent_pool_keeps_one_latent_whose_first_numbers_are_the_value() -> None:
    dims = KVDims(num_layers=2, num_kv_heads=1, head_dim=6, dtype=torch.float32, latent_rank=4)
    pool = build_memory(dims, PoolSizes(8, 1, 1, 8), "cpu").token_to_kv_pool
    latent = torch.rand(2, 1, 6)
    pool.set_kv_buffer(SimpleNamespace(layer_id=1), torch.tensor([3, 7]), latent, latent[..., :4])
    keys, values = pool.get_kv_buffer(1)
    assert torch.equal(keys[[3, 7]], latent)
    assert torch.equal(values[[3, 7]], latent[..., :4])
    assert pool.get_kv_size_bytes() == 9 * dims.cell_bytes == 9 * 2 * 6 * 4


@pytest.mark.parametrize("latent_rank", [0, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn])
def test_copies_on_the_host_come_back_to_other_slots(latent_rank: int, dtype: torch.dtype) -> None:
    dims = KVDims(2, 1, 6, dtype, latent_rank)
    memory = build_memory(dims, PoolSizes(16, 1, 1, 8), "cpu")
    pool, allocator = memory.token_to_kv_pool, memory.token_to_kv_pool_allocator
    old, new = torch.tensor([3, 4, 9]), torch.tensor([12, 5, 6])
    k, v = torch.rand(3, 1, 6), torch.rand(3, 1, 6)
    pool.set_kv_buffer(SimpleNamespace(layer_id=1), old, k, v)
    before = [buffer[old].float() for buffer in pool.get_kv_buffer(1)]
    copy = allocator.get_cpu_copy(old)
    pool.set_kv_buffer(SimpleNamespace(layer_id=1), old, -k, -v)
    allocator.load_cpu_copy(copy, new)
    after = [buffer[new].float() for buffer in pool.get_kv_buffer(1)]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_rows_are_given_once_and_kept() -> None:
    table = ReqToTokenPool(2, 8, "cpu")
    a, b, c = req("a"), req("b"), req("c")
    assert table.alloc([a]) == [1]
    assert table.alloc([a, b]) == [1, 2]
    assert table.alloc([c]) is None
    table.free(a)
    assert table.alloc([c]) == [1]
    assert a.req_pool_idx is None


def test_row_says_where_tokens_lie() -> None:
    table = ReqToTokenPool(2, 8, "cpu")
    a = req("a")
    table.alloc([a])
    table.write((a.req_pool_idx, slice(0, 3)), torch.tensor([7, 3, 9]))
    assert table.slots(a, 1, 3).tolist() == [3, 9]


@pytest.mark.parametrize("latent_rank", [0, 3])
def test_pages_are_copied_in_every_layer(latent_rank: int) -> None:
    dims = replace(DIMS, num_kv_heads=1, latent_rank=latent_rank)
    pool = build_memory(dims, PoolSizes(64, 4, 5, 64), "cpu").token_to_kv_pool
    buffers = [buffer for layer in range(2) for buffer in pool.layer_buffers(layer)]
    for buffer in buffers:
        buffer.normal_()
    before = [buffer.clone() for buffer in buffers]
    pool.copy_pages(torch.tensor([7, 2]), torch.tensor([3, 9]))
    for buffer, old in zip(buffers, before, strict=True):
        assert torch.equal(buffer[28:32], old[12:16])
        assert torch.equal(buffer[8:12], old[36:40])
        assert torch.equal(buffer[12:28], old[12:28])


def test_a_backend_without_triton_lets_the_pool_store_by_torch() -> None:
    for supports, stored_by in ((True, "kernel"), (False, store_kv_torch)):
        pool: Any = build_memory(DIMS, PoolSizes(64, 4, 5, 64), "cpu").token_to_kv_pool
        pool._store_kv = "kernel"
        backend = SimpleNamespace(support_triton=lambda supports=supports: supports)
        runner: Any = SimpleNamespace(attn_backend=backend)
        ModelRunner.attach_memory(runner, ReqToTokenPool(1, 8, "cpu"), pool)
        assert pool._store_kv is stored_by
