"""Where keys and values lie, and which slot belongs to which token of which request."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from sglang.srt.mem_cache.allocator import (
    BaseTokenToKVPoolAllocator,
    PagedTokenToKVPoolAllocator,
    TokenToKVPoolAllocator,
)

if TYPE_CHECKING:
    from sglang.srt.core.request import Req


class AttentionLayer(Protocol):
    """What the pool asks of a layer: which of the model's layers it is, from 0."""

    layer_id: int


@dataclass(frozen=True)
class KVDims:
    """What one token costs in the pool."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def cell_bytes(self) -> int:
        return kv_cell_bytes(self.num_layers, self.num_kv_heads, self.head_dim, self.dtype.itemsize)


@dataclass(frozen=True)
class PoolSizes:
    """How much memory is set aside, in tokens and requests."""

    num_tokens: int  # rounded down to whole pages
    page_size: int
    max_running_requests: int
    context_len: int


@dataclass(frozen=True)
class Memory:
    """The pools of one worker."""

    req_to_token_pool: "ReqToTokenPool"
    token_to_kv_pool: "MHATokenToKVPool"
    token_to_kv_pool_allocator: BaseTokenToKVPoolAllocator


def kv_cell_bytes(num_layers: int, num_kv_heads: int, head_dim: int, dtype_bytes: int) -> int:
    """Bytes of one token: a key and a value in every layer."""
    return 2 * num_layers * num_kv_heads * head_dim * dtype_bytes


def build_memory(dims: KVDims, sizes: PoolSizes, device: str) -> Memory:
    """Allocates the KV buffers and the tables that address them."""
    page_size = sizes.page_size
    num_tokens = sizes.num_tokens // page_size * page_size
    kv_pool = MHATokenToKVPool(num_tokens, page_size, dims, device)
    allocator: BaseTokenToKVPoolAllocator
    if page_size == 1:
        allocator = TokenToKVPoolAllocator(num_tokens, dims.dtype, device, kv_pool)
    else:
        allocator = PagedTokenToKVPoolAllocator(num_tokens, page_size, dims.dtype, device, kv_pool)
    table = ReqToTokenPool(sizes.max_running_requests, sizes.context_len, device)
    return Memory(table, kv_pool, allocator)


class ReqToTokenPool:
    """One row per running request: the slot of each of its tokens. Row 0 belongs to padding."""

    def __init__(self, size: int, max_context_len: int, device: str) -> None:
        self.size = size
        self.max_context_len = max_context_len
        self.device = device
        # req_to_token: [size + 1, max_context_len]
        self.req_to_token = torch.zeros(
            (size + 1, max_context_len), dtype=torch.int32, device=device
        )
        self.free_slots: list[int] = []
        self.clear()

    def clear(self) -> None:
        self.free_slots = list(range(self.size, 0, -1))

    def available_size(self) -> int:
        return len(self.free_slots)

    def alloc(self, reqs: "list[Req]") -> list[int] | None:
        """Gives each request a row; one that has a row keeps it. None and no change if too few."""
        new = [req for req in reqs if req.req_pool_idx is None]
        if len(new) > len(self.free_slots):
            return None
        for req in new:
            req.req_pool_idx = self.free_slots.pop()
        return [req.req_pool_idx for req in reqs if req.req_pool_idx is not None]

    def free(self, req: "Req") -> None:
        assert req.req_pool_idx is not None, f"request {req.rid} holds no row"
        self.free_slots.append(req.req_pool_idx)
        req.req_pool_idx = None

    def write(self, indices: Any, values: torch.Tensor) -> None:
        """`indices` as in `req_to_token[indices]`: usually (row, slice)."""
        self.req_to_token[indices] = values.to(torch.int32)

    def slots(self, req: "Req", start: int, end: int) -> torch.Tensor:
        """[end - start] int64: where tokens `start … end - 1` of the request lie. A copy."""
        return self.req_to_token[req.req_pool_idx, start:end].to(torch.int64)


class KVCache(ABC):
    """Keys and values of every layer, addressed by slot."""

    def __init__(self, size: int, page_size: int, dtype: torch.dtype, device: str) -> None:
        self.size = size
        self.page_size = page_size
        self.dtype = dtype
        self.device = device

    @abstractmethod
    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        """The layer's keys, first dimension = slot. Attention reads it; nobody resizes it."""

    @abstractmethod
    def get_value_buffer(self, layer_id: int) -> torch.Tensor:
        """The layer's values, laid out like its keys."""

    @abstractmethod
    def set_kv_buffer(
        self,
        layer: AttentionLayer,
        loc: torch.Tensor,
        cache_k: torch.Tensor,
        cache_v: torch.Tensor,
    ) -> None:
        """Called once per layer and pass, before the pass attends. loc: [num_tokens] slots."""

    def get_kv_buffer(self, layer_id: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.get_key_buffer(layer_id), self.get_value_buffer(layer_id)


class MHATokenToKVPool(KVCache):
    """Plain multi-head (or grouped-query) attention: one key and one value per KV head."""

    def __init__(self, size: int, page_size: int, dims: KVDims, device: str) -> None:
        super().__init__(size, page_size, dims.dtype, device)
        self.dims = dims
        # k_buffer[layer], v_buffer[layer]: [size + page_size, num_kv_heads, head_dim]
        shape = (size + page_size, dims.num_kv_heads, dims.head_dim)
        self.k_buffer = self._buffers(shape)
        self.v_buffer = self._buffers(shape)

    def _buffers(self, shape: tuple[int, ...]) -> list[torch.Tensor]:
        return [
            zeroed(shape, self.dtype, torch.device(self.device))
            for _ in range(self.dims.num_layers)
        ]

    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        return self.k_buffer[layer_id]

    def get_value_buffer(self, layer_id: int) -> torch.Tensor:
        return self.v_buffer[layer_id]

    def set_kv_buffer(
        self,
        layer: AttentionLayer,
        loc: torch.Tensor,
        cache_k: torch.Tensor,
        cache_v: torch.Tensor,
    ) -> None:
        # cache_k, cache_v: [num_tokens, num_kv_heads, head_dim]
        # Assigning to buffer[loc] does the same in ten times the time.
        self.k_buffer[layer.layer_id].index_copy_(0, loc, cache_k.to(self.dtype))
        self.v_buffer[layer.layer_id].index_copy_(0, loc, cache_v.to(self.dtype))


def zeroed(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros that take memory only where they are written, on a CPU.

    `torch.zeros` writes every page at once: 4 GiB cost about 5 s of start-up and are resident from
    then on. The kernel's zero pages cost nothing until a slot is used.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8)).view(dtype).view(shape)
