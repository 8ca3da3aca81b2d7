"""Attention of the new tokens of each request over its prefix and, causally, each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from sglang.kernels.dispatch import Kernel, power_of_two
from sglang.kernels.paged_kv import PagedKV, block_len, dot_precision

if TYPE_CHECKING:
    import triton.language as tl

_LEAST_DOT = 16  # rows and columns of the smallest product


class NewTokens(NamedTuple):
    """Which rows of q are whose: request i has rows starts[i] … starts[i + 1] - 1."""

    starts: torch.Tensor  # [batch_size + 1] int64
    longest: int  # most new tokens of one request


def extend_attention_torch(
    q: torch.Tensor, kv: PagedKV, new: NewTokens, scaling: float
) -> torch.Tensor:
    """Each request's new tokens are the last ones of its sequence. Computed in float32."""
    # q: [num_tokens, num_heads, head_dim] -> like q
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    starts = new.starts.tolist()
    for request, length in enumerate(kv.lens.tolist()):
        rows = slice(starts[request], starts[request + 1])
        keys, values = kv.sequence(request, length)
        heads = q[rows].float().transpose(0, 1)  # [num_heads, new, head_dim]
        group = heads.shape[0] // keys.shape[0]
        keys, values = (x.repeat_interleave(group, 0) for x in (keys, values))
        scores = heads @ keys.transpose(1, 2) * scaling
        later = torch.ones_like(scores[0], dtype=torch.bool).triu_(length - heads.shape[1] + 1)
        weights = torch.softmax(scores.masked_fill(later, -torch.inf), -1)
        out[rows] = (weights @ values).transpose(0, 1).to(q.dtype)
    return out


def extend_attention_triton(
    q: torch.Tensor, kv: PagedKV, new: NewTokens, scaling: float
) -> torch.Tensor:
    # q: [num_tokens, num_heads, head_dim] with any distance between tokens -> like q
    _, num_heads, head_dim = q.shape
    kv.check()
    assert q.stride()[1:] == (head_dim, 1), "the heads of a token lie side by side"
    dim = power_of_two(head_dim, _LEAST_DOT)
    block = block_len(dim, q.dtype)  # of new tokens, and of the sequence
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    _extend_kernel[(-(-new.longest // block), num_heads, len(kv.lens))](
        q, *kv, new.starts, out, scaling,
        q.stride(0), kv.table.stride(0), kv.keys.stride(0),
        num_heads, num_heads // kv.keys.shape[1], head_dim,
        DIM=dim, BLOCK=block, PRECISION=dot_precision(q.dtype), num_warps=4, num_stages=2,
    )  # fmt: skip
    return out


@Kernel
def _extend_kernel(
    q, keys, values, table, rows, lens, starts, out, scaling,
    q_stride, table_stride, slot_stride, num_heads, group, head_dim,
    DIM: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # One program per block of new tokens, head and request.
    first = tl.program_id(0) * BLOCK
    head = tl.program_id(1)
    request = tl.program_id(2)
    length = tl.load(lens + request).to(tl.int32)
    start = tl.load(starts + request)
    num_new = (tl.load(starts + request + 1) - start).to(tl.int32)
    prefix = length - num_new
    # Nothing is read for a block beyond the request's last token.
    end = tl.where(first < num_new, tl.minimum(prefix + first + BLOCK, length), 0)

    index = first + tl.arange(0, BLOCK)
    dim = tl.arange(0, DIM)
    in_dim = dim[None, :] < head_dim
    is_new = (index < num_new)[:, None] & in_dim
    token = (start + index).to(tl.int64)[:, None]
    column = head * head_dim + dim[None, :]
    query = tl.load(q + token * q_stride + column, mask=is_new, other=0.0).to(tl.float32)
    table += tl.load(rows + request) * table_stride

    # NOTE: everything is widened first; Triton's interpreter multiplies raw bfloat16 wrongly.
    highest = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    found = tl.zeros([BLOCK, DIM], tl.float32)
    for begin in range(0, end, BLOCK):
        position = begin + tl.arange(0, BLOCK)
        present = position < end
        slot = tl.load(table + position, mask=present, other=0).to(tl.int64)
        at = slot[:, None] * slot_stride + (head // group) * head_dim + dim[None, :]
        inside = present[:, None] & in_dim
        key = tl.load(keys + at, mask=inside, other=0.0).to(tl.float32)
        scores = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scaling
        attended = present[None, :] & (position[None, :] <= prefix + index[:, None])
        scores = tl.where(attended, scores, float("-inf"))
        # Finite from the first block on: every token attends to the sequence's first one.
        new_highest = tl.maximum(highest, tl.max(scores, 1))
        shrink = tl.exp(highest - new_highest)
        weights = tl.exp(scores - new_highest[:, None])
        value = tl.load(values + at, mask=inside, other=0.0).to(tl.float32)
        found = found * shrink[:, None] + tl.dot(weights, value, input_precision=PRECISION)
        total = total * shrink + tl.sum(weights, 1)
        highest = new_highest

    total = tl.where(total > 0, total, 1.0)
    result = (found / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + token * (num_heads * head_dim) + column, result, mask=is_new)
