"""The activation of gated MLPs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from sglang.kernels.dispatch import Kernel, choose

if TYPE_CHECKING:
    import triton.language as tl

_BLOCK = 1024


def silu_and_mul_for(device: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
    return choose(device, silu_and_mul_torch, silu_and_mul_triton)


def silu_and_mul_torch(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up; overwrites the gate half."""
    # gate_up: [num_tokens, 2 * intermediate] -> [num_tokens, intermediate], a view
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate, inplace=True).mul_(up)


def silu_and_mul_triton(gate_up: torch.Tensor) -> torch.Tensor:
    # gate_up: [num_tokens, 2 * intermediate] -> [num_tokens, intermediate]
    num_tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
    assert gate_up.stride(1) == 1, "the numbers of a token lie side by side"
    out = torch.empty(num_tokens, size, dtype=gate_up.dtype, device=gate_up.device)
    grid = (num_tokens, -(-size // _BLOCK))
    _silu_and_mul_kernel[grid](gate_up, out, gate_up.stride(0), size, BLOCK=_BLOCK)
    return out


@Kernel
def _silu_and_mul_kernel(gate_up, out, stride, size, BLOCK: tl.constexpr):
    # One program per token and block of numbers.
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    gate_up += row * stride + column
    gate = tl.load(gate_up, mask=inside, other=0.0)
    up = tl.load(gate_up + size, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    activated = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype).to(tl.float32)
    result = (activated * up.to(tl.float32)).to(gate.dtype)
    tl.store(out + row * size + column, result, mask=inside)
