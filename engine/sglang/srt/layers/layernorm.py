"""Root-mean-square normalization."""

import torch
from torch import nn

from sglang.srt.layers.linear import new_parameter


class RMSNorm(nn.Module):
    """x / rms(x) * weight. The mean is taken in float32 whatever the dtype."""

    def __init__(self, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.weight = new_parameter(torch.ones(hidden_size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # x: [num_tokens, hidden]
        wide = x.float()
        scale = wide.square().mean(-1, keepdim=True).add_(self.eps).rsqrt_()
        return (wide * scale).to(x.dtype).mul_(self.weight)
