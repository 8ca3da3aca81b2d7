"""Activations of gated MLPs."""

import torch
import torch.nn.functional as F


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up; overwrites the gate half."""
    # gate_up: [num_tokens, 2 * intermediate] -> [num_tokens, intermediate], a view
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate, inplace=True).mul_(up)
