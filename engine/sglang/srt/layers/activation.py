"""Activations of gated MLPs."""

import torch
from torch import nn

from sglang.kernels.silu_and_mul import silu_and_mul_for


class SiluAndMul(nn.Module):
    """silu(gate) * up. May overwrite what it is given."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._silu_and_mul = silu_and_mul_for(device)

    def forward(self, gate_up: torch.Tensor) -> torch.Tensor:
        # gate_up: [num_tokens, 2 * intermediate] -> [num_tokens, intermediate]
        return self._silu_and_mul(gate_up)
