"""Where keys and values lie, and which slot belongs to which token of which request."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from sglang.kernels.kv_copy import copy_pages_for
from sglang.kernels.kv_store import store_kv_for, store_kv_torch
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
    """What a model keeps of a token, and the type that it is kept in.

    With `latent_rank` (multi-head latent attention) a layer keeps one latent of `head_dim` numbers
    in place of a key and a value; the first `latent_rank` of them are what values are made of.

    With `window_layers` those layers keep their tokens in a second pool, which has `window_share`
    tokens per token of the first.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    latent_rank: int = 0
    window_layers: frozenset[int] = frozenset()
    window_len: int = 0  # tokens that these layers attend to
    window_share: float = 1.0
    layer_ids: tuple[int, ...] = ()  # the layers' numbers in the model, if not 0, 1, …

    @property
    def cell_bytes(self) -> int:
        """Of a token in all pools: one that is a fraction of a token in a pool counts as such."""
        num_window = len(self.window_layers)
        return self._cell_bytes(self.num_layers - num_window) + math.ceil(
            self._cell_bytes(num_window) * self.window_share
        )

    def window_tokens(self, num_tokens: int, page_size: int) -> int:
        """Size of the second pool beside a first one of that size."""
        return int(num_tokens * self.window_share) // page_size * page_size

    def split(self) -> "tuple[KVDims, KVDims]":
        """Of the first pool, and of the second."""
        window = tuple(sorted(self.window_layers))
        full = tuple(layer for layer in range(self.num_layers) if layer not in self.window_layers)
        first, second = (
            KVDims(len(ids), self.num_kv_heads, self.head_dim, self.dtype, layer_ids=ids)
            for ids in (full, window)
        )
        return first, second

    def _cell_bytes(self, num_layers: int) -> int:
        v_head_dim = 0 if self.latent_rank else self.head_dim
        return kv_cell_bytes(
            num_layers, self.num_kv_heads, self.head_dim, self.dtype.itemsize, v_head_dim
        )

    def arithmetic(self) -> str:
        """The cell as a product, for people."""
        numbers = (
            f"a latent of {self.head_dim} numbers"
            if self.latent_rank
            else f"key and value x {self.num_kv_heads} heads x {self.head_dim} numbers"
        )
        name = str(self.dtype).removeprefix("torch.")
        layers = f"{self.num_layers} layers"
        if self.window_layers:
            num_window = len(self.window_layers)
            layers = f"({self.num_layers - num_window} + {num_window} x {self.window_share}) layers"
        return (
            f"{layers} x {numbers} x {self.dtype.itemsize} bytes ({name}) = "
            f"{self.cell_bytes} bytes a token"
        )


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
    token_to_kv_pool: "KVCache"
    token_to_kv_pool_allocator: BaseTokenToKVPoolAllocator


def kv_cell_bytes(
    num_layers: int,
    num_kv_heads: int,
    head_dim: int,
    dtype_bytes: int,
    v_head_dim: int | None = None,
) -> int:
    """Bytes of one token: a key and a value in every layer.

    v_head_dim: numbers of a value; None: as many as a key has, 0: values are made of the keys.
    """
    if v_head_dim is None:
        v_head_dim = head_dim
    return num_layers * num_kv_heads * (head_dim + v_head_dim) * dtype_bytes


def build_memory(dims: KVDims, sizes: PoolSizes, device: str) -> Memory:
    """Allocates the KV buffers and the tables that address them."""
    page_size = sizes.page_size
    num_tokens = sizes.num_tokens // page_size * page_size
    table = ReqToTokenPool(sizes.max_running_requests, sizes.context_len, device)
    if dims.window_layers:
        return _two_pools(dims, num_tokens, page_size, table)
    pool_class = MLATokenToKVPool if dims.latent_rank else MHATokenToKVPool
    kv_pool = pool_class(num_tokens, page_size, dims, device)
    allocator: BaseTokenToKVPoolAllocator
    if page_size == 1:
        allocator = TokenToKVPoolAllocator(num_tokens, dims.dtype, device, kv_pool)
    else:
        allocator = PagedTokenToKVPoolAllocator(num_tokens, page_size, dims.dtype, device, kv_pool)
    return Memory(table, kv_pool, allocator)


def _two_pools(dims: KVDims, num_tokens: int, page_size: int, table: "ReqToTokenPool") -> Memory:
    from sglang.srt.mem_cache.swa_memory import SWAKVPool, SWATokenToKVPoolAllocator

    num_window = dims.window_tokens(num_tokens, page_size)
    pool = SWAKVPool(num_tokens, num_window, page_size, dims, table.device)
    return Memory(table, pool, SWATokenToKVPoolAllocator(num_tokens, num_window, page_size, pool))


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
    """Keys and values of every layer, addressed by slot, as numbers of `dtype`.

    That may be a smaller type than the model computes in: who reads converts what it gathered.
    """

    num_layers: int = 0  # that keep something here

    @property
    def layer_ids(self) -> Sequence[int]:
        """Their numbers in the model."""
        return range(self.num_layers)

    def __init__(self, size: int, page_size: int, dtype: torch.dtype, device: str) -> None:
        self.size = size
        self.page_size = page_size
        self.dtype = dtype
        self.device = device
        self._store_kv = store_kv_for(torch.device(device))
        self._copy_pages = copy_pages_for(torch.device(device))

    def store_by_torch(self) -> None:
        """From now on, on any device: for attention backends that do without Triton."""
        self._store_kv = store_kv_torch

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
        k_scale: float | None = None,
        v_scale: float | None = None,
    ) -> None:
        """Called once per layer and pass, before the pass attends. loc: [num_tokens] slots.

        What is stored is divided by the scale, if there is one; whoever attends multiplies by it.
        """

    def layer_buffers(self, layer_id: int) -> tuple[torch.Tensor, ...]:
        """All that the layer keeps, each once: first dimension = slot."""
        return self.get_kv_buffer(layer_id)

    def get_kv_buffer(self, layer_id: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.get_key_buffer(layer_id), self.get_value_buffer(layer_id)

    def get_kv_size_bytes(self) -> int:
        """Of all buffers, the padding page included."""
        return sum(
            buffer.nbytes for layer in self.layer_ids for buffer in self.layer_buffers(layer)
        )

    def get_cpu_copy(self, indices: torch.Tensor) -> list[list[torch.Tensor]]:
        """What stands in these slots, layer by layer, in memory of its own."""
        return [
            [buffer[indices].to("cpu") for buffer in self.layer_buffers(layer)]
            for layer in range(self.num_layers)
        ]

    def load_cpu_copy(self, kv_cache_cpu: list[list[torch.Tensor]], indices: torch.Tensor) -> None:
        """Writes a copy back, to the same or to other slots."""
        for layer, copies in enumerate(kv_cache_cpu):
            self.load_layer(layer, copies, indices)

    def load_layer(self, layer_id: int, copies: list[torch.Tensor], indices: torch.Tensor) -> None:
        """Of one layer what `get_cpu_copy` returned for it."""
        for buffer, copy in zip(self.layer_buffers(layer_id), copies, strict=True):
            self._store_kv((buffer,), indices, (copy.to(buffer.device),))

    def copy_pages(self, targets: torch.Tensor, sources: torch.Tensor) -> None:
        """Page targets[i] becomes what page sources[i] is. No page is target and source at once."""
        for layer in self.layer_ids:
            for buffer in self.layer_buffers(layer):
                self._copy_pages(buffer, targets, sources, self.page_size)


class MHATokenToKVPool(KVCache):
    """Plain multi-head (or grouped-query) attention: one key and one value per KV head."""

    def __init__(self, size: int, page_size: int, dims: KVDims, device: str) -> None:
        super().__init__(size, page_size, dims.dtype, device)
        self.dims = dims
        self.num_layers = dims.num_layers
        # k_buffer[layer], v_buffer[layer]: [size + page_size, num_kv_heads, head_dim]
        shape = (size + page_size, dims.num_kv_heads, dims.head_dim)
        self.k_buffer = _buffers(dims, shape, device)
        self.v_buffer = _buffers(dims, shape, device)

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
        k_scale: float | None = None,
        v_scale: float | None = None,
    ) -> None:
        # cache_k, cache_v: [num_tokens, num_kv_heads, head_dim]
        new = (cache_k, cache_v)
        if k_scale is not None or v_scale is not None:
            new = (_scaled(cache_k, k_scale), _scaled(cache_v, v_scale))
        self._store_kv(self.get_kv_buffer(layer.layer_id), loc, new)


class MLATokenToKVPool(KVCache):
    """Multi-head latent attention: one latent per token, which all heads share.

    The whole latent is the key of the absorbed form, its first `latent_rank` numbers the value.
    """

    def __init__(self, size: int, page_size: int, dims: KVDims, device: str) -> None:
        super().__init__(size, page_size, dims.dtype, device)
        self.dims = dims
        self.num_layers = dims.num_layers
        self.kv_lora_rank = dims.latent_rank
        self.qk_rope_head_dim = dims.head_dim - dims.latent_rank
        # kv_buffer[layer]: [size + page_size, 1, kv_lora_rank + qk_rope_head_dim]
        self.kv_buffer = _buffers(dims, (size + page_size, 1, dims.head_dim), device)

    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        return self.kv_buffer[layer_id]

    def get_value_buffer(self, layer_id: int) -> torch.Tensor:
        return self.kv_buffer[layer_id][..., : self.kv_lora_rank]

    def layer_buffers(self, layer_id: int) -> tuple[torch.Tensor, ...]:
        return (self.kv_buffer[layer_id],)

    def set_kv_buffer(
        self,
        layer: AttentionLayer,
        loc: torch.Tensor,
        cache_k: torch.Tensor,
        cache_v: torch.Tensor,
        k_scale: float | None = None,
        v_scale: float | None = None,
    ) -> None:
        # cache_k: [num_tokens, 1, kv_lora_rank + qk_rope_head_dim]; cache_v is a part of it
        buffers = self.layer_buffers(layer.layer_id)
        self._store_kv(buffers, loc, (_scaled(cache_k, k_scale),))


def _scaled(values: torch.Tensor, scale: float | None) -> torch.Tensor:
    return values if scale is None else values / scale


def _buffers(dims: KVDims, shape: tuple[int, ...], device: str) -> list[torch.Tensor]:
    return [zeroed(shape, dims.dtype, torch.device(device)) for _ in range(dims.num_layers)]


def zeroed(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros that take memory only where they are written, on a CPU.

    `torch.zeros` writes every page at once: 4 GiB cost about 5 s of start-up and are resident from
    then on. The kernel's zero pages cost nothing until a slot is used.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8)).view(dtype).view(shape)
