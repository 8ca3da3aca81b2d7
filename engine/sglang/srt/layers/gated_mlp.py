"""The feed-forward part of a layer."""

import torch
from torch import nn

from sglang.srt.layers.activation import gated_activation
from sglang.srt.layers.linear import GateUpLinear, Linear


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x))."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, hidden_act: str, bias: bool = False
    ) -> None:
        super().__init__()
        self.gate_up_proj = GateUpLinear(hidden_size, intermediate_size, bias)
        self.act_fn = gated_activation(hidden_act, self.gate_up_proj.weight.device)
        self.down_proj = Linear(intermediate_size, hidden_size, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # x: [num_tokens, hidden] -> [num_tokens, hidden]
        return self.down_proj(self.act_fn(self.gate_up_proj(x)))
