"""Attention by Triton kernels that read the paged KV pool where it lies."""

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

from sglang.kernels.decode_attention import NUM_KV_SPLITS, decode_attention_triton
from sglang.kernels.extend_attention import NewTokens, extend_attention_triton
from sglang.kernels.paged_kv import PagedKV
from sglang.srt.arg_groups.attention import check_attention_backend
from sglang.srt.core.batch import ForwardBatch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend, save_kv

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention


class TritonAttnBackend(AttentionBackend):
    """No keys or values are copied; what layers share is where each request's new tokens are."""

    def __init__(self, num_kv_splits: int = NUM_KV_SPLITS) -> None:
        self.num_kv_splits = num_kv_splits
        self._new: NewTokens | None = None

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        if forward_batch.forward_mode.is_decode():
            return
        lens = forward_batch.extend_seq_lens
        starts = torch.tensor([0, *accumulate(lens)], device=forward_batch.seq_lens.device)
        self._new = NewTokens(starts, max(lens))

    def forward_decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: "RadixAttention",
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        if save_kv_cache:
            save_kv(layer, forward_batch, k, v)
        heads = q.view(-1, layer.num_heads, layer.head_dim)
        kv = _paged_kv(layer, forward_batch)
        return decode_attention_triton(heads, kv, layer.scoring, self.num_kv_splits).flatten(1)

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: "RadixAttention",
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        assert self._new is not None, "init_forward_metadata comes before the layers"
        if save_kv_cache:
            save_kv(layer, forward_batch, k, v)
        heads = q.view(-1, layer.num_heads, layer.head_dim)
        kv = _paged_kv(layer, forward_batch)
        return extend_attention_triton(heads, kv, self._new, layer.scoring).flatten(1)


def create_triton_backend(runner: Any) -> TritonAttnBackend:
    """The registered factory; a CPU is refused unless Triton interprets."""
    check_attention_backend("triton", runner.device.type)
    return TritonAttnBackend(runner.config.triton_attention_num_kv_splits)


def _paged_kv(layer: "RadixAttention", forward_batch: ForwardBatch) -> PagedKV:
    return PagedKV(
        *forward_batch.token_to_kv_pool.get_kv_buffer(layer.layer_id),
        forward_batch.req_to_token_pool.req_to_token,
        forward_batch.req_pool_indices,
        forward_batch.seq_lens,
    )
