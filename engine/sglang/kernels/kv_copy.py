"""Pages of the KV pool that move to other pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from sglang.kernels.dispatch import Kernel, choose
from sglang.kernels.kv_store import copy_row

if TYPE_CHECKING:
    import triton.language as tl

CopyPages = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int], None]

_BLOCK = 1024


def copy_pages_for(device: torch.device) -> CopyPages:
    return choose(device, copy_pages_torch, copy_pages_triton)


def copy_pages_torch(
    buffer: torch.Tensor, targets: torch.Tensor, sources: torch.Tensor, page_size: int
) -> None:
    """Page targets[i] becomes what page sources[i] was. No page is target and source at once."""
    # buffer: [num_pages * page_size, kv_heads, head_dim]; targets, sources: [num_copied] int64
    pages = buffer.view(torch.uint8).view(-1, page_size * buffer[0].nbytes)
    pages.index_copy_(0, targets, pages.index_select(0, sources))


def copy_pages_triton(
    buffer: torch.Tensor, targets: torch.Tensor, sources: torch.Tensor, page_size: int
) -> None:
    assert buffer.is_contiguous()
    if buffer.dtype.itemsize == 1:
        buffer = buffer.view(torch.uint8)
    size = page_size * buffer[0].numel()
    _copy_kernel[(len(targets),)](buffer, targets, sources, size, BLOCK=_BLOCK, num_warps=4)


@Kernel
def _copy_kernel(buffer, targets, sources, size, BLOCK: tl.constexpr):
    # One program per page.
    target = tl.load(targets + tl.program_id(0)).to(tl.int64)
    source = tl.load(sources + tl.program_id(0)).to(tl.int64)
    copy_row(buffer + source * size, buffer + target * size, size, BLOCK)
