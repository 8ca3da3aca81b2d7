"""Attention of models with two KV pools: each pool has a backend of its own."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from sglang.srt.core.batch import ForwardBatch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.mem_cache.swa_memory import SWAKVPool

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention


@dataclass(frozen=True)
class _WindowTable:
    """As much of a `ReqToTokenPool` as attention reads: one row per request of the batch."""

    req_to_token: torch.Tensor  # [batch_size, longest] slots of the window pool


class WindowPoolBackend(AttentionBackend):
    """Layers with a window see a batch whose slots are those of the window pool."""

    def __init__(self, full: AttentionBackend, window: AttentionBackend) -> None:
        self._full, self._window = full, window
        self._window_batch: ForwardBatch | None = None

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        self._window_batch = in_window_pool(forward_batch)
        self._full.init_forward_metadata(forward_batch)
        self._window.init_forward_metadata(self._window_batch)

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: "RadixAttention",
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        backend = self._full
        if forward_batch.token_to_kv_pool.is_window_layer(layer.layer_id):
            assert self._window_batch is not None, "init_forward_metadata comes before the layers"
            backend, forward_batch = self._window, self._window_batch
        return backend.forward(q, k, v, layer, forward_batch, save_kv_cache, **kwargs)

    def support_triton(self) -> bool:
        return self._full.support_triton()

    def forget(self) -> None:
        self._full.forget()
        self._window.forget()

    def release(self) -> None:
        self._full.release()
        self._window.release()


def in_window_pool(batch: ForwardBatch) -> ForwardBatch:
    """The same pass, addressed as in the window pool."""
    pool: SWAKVPool = batch.token_to_kv_pool
    table = batch.req_to_token_pool.req_to_token[batch.req_pool_indices, : max(batch.seq_lens_cpu)]
    # A row says nothing beyond its request's end, where the longest one's may still be read.
    ends = torch.arange(table.shape[1], device=table.device) < batch.seq_lens.unsqueeze(1)
    slots = pool.translate_loc_from_full_to_swa(table * ends)
    return replace(
        batch,
        req_pool_indices=torch.arange(batch.batch_size, device=table.device),
        out_cache_loc=pool.translate_loc_from_full_to_swa(batch.out_cache_loc),
        req_to_token_pool=_WindowTable(slots),
        token_to_kv_pool=pool.swa_kv_pool,
    )
