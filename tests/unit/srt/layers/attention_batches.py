"""Batches of random queries, keys and values over real pools, and what they must attend to."""

from dataclasses import dataclass
from typing import Any

import torch

from sglang.kernels.extend_attention import NewTokens, extend_attention_torch
from sglang.kernels.paged_kv import PagedKV
from sglang.srt.core.batch import ForwardBatch, ForwardMode
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.mem_cache.memory_pool import KVDims, PoolSizes, build_memory

CONTEXT_LEN = 203


@dataclass
class World:
    """Pools with one layer, where requests grow pass by pass. latent_rank: of latent attention."""

    layer: RadixAttention
    page_size: int = 1
    latent_rank: int = 0
    device: str = "cpu"
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        torch.manual_seed(5)
        layer = self.layer
        dims = KVDims(
            1, layer.num_kv_heads, layer.head_dim, self.dtype, latent_rank=self.latent_rank
        )
        self.cell_bytes = dims.cell_bytes
        sizes = PoolSizes(64 * self.page_size + 1024, self.page_size, 8, CONTEXT_LEN)
        self.memory = build_memory(dims, sizes, self.device)
        pages = torch.randperm(len(self._keys) // self.page_size - 1) + 1
        self._free_pages = pages.tolist()
        self.lens: list[int] = []
        # What nobody has written is not read; the first page is for what is masked.
        self._keys[self.page_size :] = torch.nan

    def admit(self, prefixes: list[int]) -> None:
        """One more request for each number: with so many tokens that stand in the pool."""
        for prefix in prefixes:
            self.lens.append(0)
            slots = self._grow(len(self.lens) - 1, prefix)
            layer = self.layer
            keys = self._random(prefix, layer.num_kv_heads, layer.head_dim)
            values = self._random(prefix, layer.num_kv_heads, layer.v_head_dim)
            self.memory.token_to_kv_pool.set_kv_buffer(layer, slots, keys, values)

    def check(self, backend: AttentionBackend, news: list[int], mode: ForwardMode) -> None:
        """One pass with so many new tokens per request, against the kernels' twin."""
        ours, expected = self.run(backend, news, mode)
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)

    def run(
        self, backend: AttentionBackend, news: list[int], mode: ForwardMode
    ) -> tuple[torch.Tensor, torch.Tensor]:
        layer, total, prefixes = self.layer, sum(news), list(self.lens)
        slots = torch.cat([self._grow(row, new) for row, new in enumerate(news)])
        q = self._random(total, layer.num_heads * layer.head_dim)
        k = self._random(total, layer.num_kv_heads * layer.head_dim)
        v = self._random(total, layer.num_kv_heads * layer.v_head_dim)
        if self.latent_rank:
            v = k[:, : self.latent_rank]
        rows = torch.arange(1, len(self.lens) + 1, device=self.device)
        lens = torch.tensor(self.lens, device=self.device)
        nothing = torch.zeros(total, dtype=torch.int64, device=self.device)
        batch = ForwardBatch(mode, nothing, nothing, rows, lens, list(self.lens), slots)
        if mode is not ForwardMode.DECODE:
            batch.extend_prefix_lens, batch.extend_seq_lens = prefixes, news
        batch.req_to_token_pool = self.memory.req_to_token_pool
        batch.token_to_kv_pool = self.memory.token_to_kv_pool
        batch.attn_backend = backend
        backend.init_forward_metadata(batch)
        ours = layer(q, k, v, batch)
        buffers: Any = self.memory.token_to_kv_pool.get_kv_buffer(0)
        kv = PagedKV(*buffers, self.memory.req_to_token_pool.req_to_token, rows, lens)
        starts = torch.tensor([0, *torch.tensor(news).cumsum(0).tolist()])
        heads = q.view(total, layer.num_heads, layer.head_dim)
        new = NewTokens(starts, max(news))
        return ours, extend_attention_torch(heads, kv, new, layer.scoring).flatten(1)

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape).to(self.device, self.dtype)

    @property
    def _keys(self) -> torch.Tensor:
        return self.memory.token_to_kv_pool.get_key_buffer(0)

    def _grow(self, row: int, new: int) -> torch.Tensor:
        table = self.memory.req_to_token_pool.req_to_token[row + 1]
        for place in range(self.lens[row], self.lens[row] + new):
            within = place % self.page_size
            if within == 0:
                table[place] = self._free_pages.pop() * self.page_size
            else:
                table[place] = table[place - 1] + 1
        self.lens[row] += new
        return table[self.lens[row] - new : self.lens[row]].long()
