"""Root-mean-square normalization, alone and of a sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch

from sglang.kernels.dispatch import Kernel, choose, power_of_two

if TYPE_CHECKING:
    import triton.language as tl


class RMSNormOps(NamedTuple):
    """Both operations, for one kind of device."""

    # norm(x, weight, eps) -> like x; x: [..., hidden], weight: [hidden]
    norm: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]
    # add_norm(residual, update, weight, eps): adds in place, -> the sum, normalized
    add_norm: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]


def rms_norm_for(device: torch.device) -> RMSNormOps:
    return choose(
        device,
        RMSNormOps(rms_norm_torch, add_rms_norm_torch),
        RMSNormOps(rms_norm_triton, add_rms_norm_triton),
    )


# ------------------------------------------------------------------ torch


def rms_norm_torch(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / rms(x) * weight. The mean is taken in float32 whatever the dtype."""
    wide = x.float()
    scale = wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    return (wide * scale).to(x.dtype).mul_(weight)


def add_rms_norm_torch(
    residual: torch.Tensor, update: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """Adds `update` to `residual` in place and normalizes the sum."""
    return rms_norm_torch(residual.add_(update), weight, eps)


# ------------------------------------------------------------------ Triton


def rms_norm_triton(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    rows = x.reshape(-1, x.shape[-1])
    return _launch(rows, rows, weight, eps, add=False).view(x.shape)


def add_rms_norm_triton(
    residual: torch.Tensor, update: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    size = residual.shape[-1]
    out = _launch(residual.view(-1, size), update.reshape(-1, size), weight, eps, add=True)
    return out.view(residual.shape)


def _launch(
    x: torch.Tensor, update: torch.Tensor, weight: torch.Tensor, eps: float, add: bool
) -> torch.Tensor:
    # x, update: [rows, hidden] with any distance between rows
    rows, size = x.shape
    assert x.stride(1) == update.stride(1) == 1, "the numbers of a row lie side by side"
    out = torch.empty(rows, size, dtype=x.dtype, device=x.device)
    block = power_of_two(size)
    _rms_norm_kernel[(rows,)](
        x, update, weight, out, x.stride(0), update.stride(0), size, eps,
        ADD=add, BLOCK=block, num_warps=min(max(block // 256, 1), 16),
    )  # fmt: skip
    return out


@Kernel
def _rms_norm_kernel(
    x, update, weight, out, x_stride, update_stride, size, eps,
    ADD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # One program per row.
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < size
    x += row * x_stride + column
    stored = tl.load(x, mask=inside, other=0.0)
    wide = stored.to(tl.float32)
    if ADD:
        added = tl.load(update + row * update_stride + column, mask=inside, other=0.0)
        # The residual keeps the rounded sum, and that is what is normalized.
        total = (wide + added.to(tl.float32)).to(stored.dtype)
        tl.store(x, total, mask=inside)
        wide = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / size + eps)
    normed = (wide * scale).to(stored.dtype).to(tl.float32)
    factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * size + column, (normed * factor).to(stored.dtype), mask=inside)
