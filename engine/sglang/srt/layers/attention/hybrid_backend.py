"""Two attention backends behind one: prompts go to the first, decode steps to the second."""

from typing import TYPE_CHECKING, Any

import torch

from sglang.srt.core.batch import ForwardBatch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention


class HybridAttnBackend(AttentionBackend):
    """A pass that mixes both is one of prompts: its decoding requests have one new token each."""

    def __init__(self, prefill_backend: AttentionBackend, decode_backend: AttentionBackend) -> None:
        self.prefill_backend = prefill_backend
        self.decode_backend = decode_backend

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        chosen, other = self.prefill_backend, self.decode_backend
        if forward_batch.forward_mode.is_decode():
            chosen, other = other, chosen
        other.forget()
        chosen.init_forward_metadata(forward_batch)

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
        is_decode = forward_batch.forward_mode.is_decode()
        chosen = self.decode_backend if is_decode else self.prefill_backend
        return chosen.forward(q, k, v, layer, forward_batch, save_kv_cache=save_kv_cache, **kwargs)

    def support_triton(self) -> bool:
        return self.prefill_backend.support_triton() and self.decode_backend.support_triton()

    def forget(self) -> None:
        self.prefill_backend.forget()
        self.decode_backend.forget()

    def release(self) -> None:
        self.prefill_backend.release()
        self.decode_backend.release()
