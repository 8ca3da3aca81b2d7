"""Keys and values of new tokens on their way into the paged KV pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from sglang.kernels.dispatch import Kernel, Part, choose

if TYPE_CHECKING:
    import triton.language as tl

Tensors = tuple[torch.Tensor, ...]

_BLOCK = 1024


def store_kv_for(device: torch.device) -> Callable[[Tensors, torch.Tensor, Tensors], None]:
    return choose(device, store_kv_torch, store_kv_triton)


def store_kv_torch(buffers: Tensors, loc: torch.Tensor, new: Tensors) -> None:
    """buffer[loc] = rows for each pair; assigning does the same in ten times the time."""
    # buffers: one or two [slots, kv_heads, …], new: as many [num_tokens, kv_heads, …]
    for buffer, rows in zip(buffers, new, strict=True):
        stored = rows if rows.dtype == buffer.dtype else rounded(rows, buffer.dtype)
        if buffer.dtype.itemsize == 1:
            # torch copies bytes by index, but not 8-bit floats.
            buffer, stored = buffer.view(torch.uint8), stored.contiguous().view(torch.uint8)
        buffer.index_copy_(0, loc, stored)


def rounded(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What an 8-bit type cannot hold becomes the largest number that it can: an infinity would
    spoil every token that attends to it.
    """
    if dtype.itemsize == 1 and values.dtype != dtype:
        largest = torch.finfo(dtype).max
        values = values.clamp(-largest, largest)
    return values.to(dtype)


def store_kv_triton(buffers: Tensors, loc: torch.Tensor, new: Tensors) -> None:
    # The rows of both sides may lie apart. Types of 8 bits are left to torch: not every device that
    # has Triton converts to them.
    if buffers[0].dtype.itemsize == 1:
        store_kv_torch(buffers, loc, new)
        return
    for tensor in (*buffers, *new):
        assert tensor.stride()[1:] == (tensor.shape[2], 1), "the heads of a token lie side by side"
    sizes = [rows.shape[1] * rows.shape[2] for rows in new]
    last = len(buffers) - 1  # with one buffer the kernel's second one is the first
    _store_kernel[(len(loc), len(buffers))](
        loc, buffers[0], new[0], buffers[last], new[last],
        buffers[0].stride(0), new[0].stride(0), sizes[0],
        buffers[last].stride(0), new[last].stride(0), sizes[last],
        BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip


@Kernel
def _store_kernel(
    loc, keys, new_keys, values, new_values,
    key_stride, new_key_stride, key_size, value_stride, new_value_stride, value_size,
    BLOCK: tl.constexpr,
):  # fmt: skip
    # One program per token and buffer.
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(loc + token).to(tl.int64)
    if tl.program_id(1) == 0:
        copy_row(new_keys + token * new_key_stride, keys + slot * key_stride, key_size, BLOCK)
    else:
        copy_row(
            new_values + token * new_value_stride, values + slot * value_stride, value_size, BLOCK
        )


@Part
def copy_row(source, target, size, BLOCK: tl.constexpr):
    """`size` numbers from one place to another, as numbers of the target's type."""
    for begin in range(0, size, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        numbers = tl.load(source + at, mask=at < size)
        tl.store(target + at, numbers.to(target.dtype.element_ty), mask=at < size)
