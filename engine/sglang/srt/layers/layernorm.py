"""Root-mean-square normalization."""

import torch
from torch import nn

from sglang.kernels.rms_norm import rms_norm_for
from sglang.srt.layers.linear import new_parameter


class RMSNorm(nn.Module):
    """x / rms(x) * weight. The mean is taken in float32 whatever the dtype."""

    def __init__(self, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.weight = new_parameter(torch.ones(hidden_size))
        self.eps = eps
        self._norm, self._add_norm = rms_norm_for(self.weight.device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # x: [num_tokens, hidden]
        return self._norm(x, self.weight, self.eps)

    def after_adding(self, residual: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
        """Adds `update` to `residual` in place and normalizes the sum."""
        # residual, update: [num_tokens, hidden]
        return self._add_norm(residual, update, self.weight, self.eps)


class CenteredRMSNorm(RMSNorm):
    """x / rms(x) * (1 + weight), all of it in float32."""

    def __init__(self, hidden_size: int, eps: float) -> None:
        super().__init__(hidden_size, eps)
        self.weight.data.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scale = wide.square().mean(-1, keepdim=True).add_(self.eps).rsqrt_()
        return (wide * scale).mul_(1.0 + self.weight.float()).to(x.dtype)

    def after_adding(self, residual: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
        return self(residual.add_(update))
