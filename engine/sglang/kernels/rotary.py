"""Rotation of heads by their tokens' angles; the halves of a head are its two parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from sglang.kernels.dispatch import Kernel, choose, power_of_two

if TYPE_CHECKING:
    import triton.language as tl

# rotate(heads, cos, sin) -> like heads, contiguous
# heads: [num_tokens, num_heads, head_dim]; cos, sin: [num_tokens, 1, head_dim], where both halves
# of cos are equal and the first half of sin is the second one's negative.
Rotate = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

_HEADS_PER_PROGRAM = 16


def rotate_for(device: torch.device) -> Rotate:
    return choose(device, rotate_torch, rotate_triton)


def rotate_torch(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = heads.shape[-1] // 2
    swapped = torch.cat((heads[..., half:], heads[..., :half]), -1)
    return (heads * cos).addcmul_(swapped, sin)


def rotate_triton(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    num_tokens, num_heads, head_dim = heads.shape
    assert heads.stride()[1:] == (head_dim, 1), "the heads of a token lie side by side"
    assert cos.is_contiguous() and sin.is_contiguous()
    out = torch.empty(heads.shape, dtype=heads.dtype, device=heads.device)
    grid = (num_tokens, -(-num_heads // _HEADS_PER_PROGRAM))
    _rotate_kernel[grid](
        heads, cos, sin, out, heads.stride(0), num_heads, head_dim // 2,
        HEADS=_HEADS_PER_PROGRAM, HALF=power_of_two(head_dim // 2),
    )  # fmt: skip
    return out


@Kernel
def _rotate_kernel(
    heads, cos, sin, out, token_stride, num_heads, half, HEADS: tl.constexpr, HALF: tl.constexpr
):
    # One program per token and group of heads.
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    column = tl.arange(0, HALF)
    in_half = column < half
    inside = (head[:, None] < num_heads) & in_half[None, :]
    at = head[:, None] * (2 * half) + column[None, :]
    heads += token * token_stride + at
    out += token * num_heads * (2 * half) + at
    first = tl.load(heads, mask=inside, other=0.0)
    second = tl.load(heads + half, mask=inside, other=0.0)
    dtype = first.dtype
    first = first.to(tl.float32)
    second = second.to(tl.float32)
    angle = token * (2 * half) + half + column
    c = tl.load(cos + angle, mask=in_half, other=0.0).to(tl.float32)[None, :]
    s = tl.load(sin + angle, mask=in_half, other=0.0).to(tl.float32)[None, :]
    # Products with the cosine are rounded before the rest is added, as in torch.
    tl.store(out, ((first * c).to(dtype).to(tl.float32) - second * s).to(dtype), mask=inside)
    tl.store(out + half, ((second * c).to(dtype).to(tl.float32) + first * s).to(dtype), mask=inside)
