"""The attention layer of a model; the backend that the batch carries does the work."""

import torch
from torch import nn

from sglang.srt.core.batch import ForwardBatch


class RadixAttention(nn.Module):
    """Grouped-query attention of one layer over the shared KV pool. Has no weights."""

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        scaling: float,
        num_kv_heads: int,
        layer_id: int,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.scaling = scaling
        self.num_kv_heads = num_kv_heads
        self.layer_id = layer_id

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
    ) -> torch.Tensor:
        # q: [num_tokens, num_heads * head_dim], k and v: [num_tokens, num_kv_heads * head_dim]
        # -> like q
        return forward_batch.attn_backend.forward(
            q, k, v, self, forward_batch, save_kv_cache=save_kv_cache
        )
