"""Activations of gated MLPs."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
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


class GeluTanhAndMul(nn.Module):
    """gelu(gate) * up, with the approximation by tanh."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()

    def forward(self, gate_up: torch.Tensor) -> torch.Tensor:
        # gate_up: [num_tokens, 2 * intermediate] -> [num_tokens, intermediate]
        gate, up = gate_up.chunk(2, dim=-1)
        return F.gelu(gate, approximate="tanh").mul_(up)


_ACTIVATIONS: dict[str, Callable[[torch.device], nn.Module]] = {
    "silu": SiluAndMul,
    "gelu_pytorch_tanh": GeluTanhAndMul,
}


def gated_activation(name: str, device: torch.device) -> nn.Module:
    """By the name in config.json; an unknown one is a ValueError."""
    if name not in _ACTIVATIONS:
        raise ValueError(
            f"hidden_act {name!r} is not supported; it must be one of {', '.join(_ACTIVATIONS)}."
        )
    return _ACTIVATIONS[name](device)
