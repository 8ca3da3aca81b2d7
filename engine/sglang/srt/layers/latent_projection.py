"""From the latent of multi-head latent attention to the keys and values of its heads."""

import torch
from torch import nn

from sglang.srt.configs.latent_config import LatentConfig
from sglang.srt.layers.linear import new_parameter


class LatentProjection(nn.Module):
    """A head's key is W_k c and its value W_v c, where c is the latent of a token.

    Neither is ever made: q · (W_k c) = (W_kᵀ q) · c, and a weighted sum of W_v c is W_v applied to
    the sum of the c. So attention works on latents, which are all that the pool keeps.
    """

    def __init__(self, num_heads: int, config: LatentConfig) -> None:
        super().__init__()
        self.key_rows = config.qk_nope_head_dim
        rows = config.qk_nope_head_dim + config.v_head_dim
        self.num_heads = num_heads
        # weight: [num_heads * (qk_nope_head_dim + v_head_dim), kv_lora_rank]
        self.weight = new_parameter(torch.empty(num_heads * rows, config.kv_lora_rank))

    def absorb(self, queries: torch.Tensor) -> torch.Tensor:
        """Queries as the latents see them."""
        # queries: [num_tokens, num_heads, qk_nope_head_dim] -> [..., kv_lora_rank]
        of_keys = self._by_head()[:, : self.key_rows]
        return torch.bmm(queries.transpose(0, 1), of_keys).transpose(0, 1)

    def values(self, sums: torch.Tensor) -> torch.Tensor:
        """What heads found in values, from what they found in latents."""
        # sums: [num_tokens, num_heads, kv_lora_rank] -> [..., v_head_dim]
        of_values = self._by_head()[:, self.key_rows :]
        return torch.bmm(sums.transpose(0, 1), of_values.transpose(1, 2)).transpose(0, 1)

    def _by_head(self) -> torch.Tensor:
        return self.weight.unflatten(0, (self.num_heads, -1))
