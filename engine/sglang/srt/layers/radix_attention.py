"""The attention layer of a model; the backend that the batch carries does the work."""

from typing import Any

import torch
from torch import nn

from sglang.kernels.paged_kv import Scoring
from sglang.srt.core.batch import ForwardBatch


class RadixAttention(nn.Module):
    """Grouped-query attention of one layer over the shared KV pool. Has no weights.

    logit_cap: scores become cap * tanh(score / cap); 0: they stay.
    v_head_dim: numbers of a value's head; -1: as many as a key's. In the absorbed form of latent
    attention there is one KV head, and values are the first numbers of the keys.
    sliding_window_size: tokens that a token attends to, itself among them; -1: all.
    """

    def __init__(  # noqa: PLR0913 (a documented signature)
        self,
        num_heads: int,
        head_dim: int,
        scaling: float,
        num_kv_heads: int,
        layer_id: int,
        logit_cap: float = 0.0,
        v_head_dim: int = -1,
        sliding_window_size: int = -1,
    ) -> None:
        super().__init__()
        if sliding_window_size == 0:
            raise ValueError("sliding_window_size must be -1 (no window) or at least 1, got 0")
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.scaling = scaling
        self.num_kv_heads = num_kv_heads
        self.layer_id = layer_id
        self.logit_cap = logit_cap
        self.v_head_dim = head_dim if v_head_dim == -1 else v_head_dim
        self.sliding_window_size = sliding_window_size
        # Once more, as kernels take it.
        self.scoring = Scoring(scaling, sliding_window_size, logit_cap)

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        """What else is given reaches a backend that asks for it."""
        # q: [num_tokens, num_heads * head_dim], k: [num_tokens, num_kv_heads * head_dim],
        # v: [num_tokens, num_kv_heads * v_head_dim] -> [num_tokens, num_heads * v_head_dim]
        return forward_batch.attn_backend.forward(
            q, k, v, self, forward_batch, save_kv_cache=save_kv_cache, **kwargs
        )
