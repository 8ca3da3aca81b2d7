"""Attention of the new tokens of each request over its prefix and, causally, each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from sglang.kernels.dispatch import Kernel
from sglang.kernels.online_softmax import attend, queries_of
from sglang.kernels.paged_kv import Blocks, PagedKV, Scoring, dot_precision

if TYPE_CHECKING:
    import triton.language as tl


class NewTokens(NamedTuple):
    """Which rows of q are whose: request i has rows starts[i] … starts[i + 1] - 1."""

    starts: torch.Tensor  # [batch_size + 1] int64
    longest: int  # most new tokens of one request


def extend_attention_torch(
    q: torch.Tensor, kv: PagedKV, new: NewTokens, scoring: Scoring
) -> torch.Tensor:
    """Each request's new tokens are the last ones of its sequence. Computed in float32."""
    # q: [num_tokens, num_heads, head_dim] -> [num_tokens, num_heads, v_head_dim]
    out = torch.empty((*q.shape[:2], kv.values.shape[2]), dtype=q.dtype, device=q.device)
    starts = new.starts.tolist()
    for request, length in enumerate(kv.lens.tolist()):
        rows = slice(starts[request], starts[request + 1])
        keys, values = kv.sequence(request, length)
        heads = q[rows].float().transpose(0, 1)  # [num_heads, new, head_dim]
        group = heads.shape[0] // keys.shape[0]
        keys, values = (x.repeat_interleave(group, 0) for x in (keys, values))
        scores = scoring.of(heads @ keys.transpose(1, 2))
        scores.masked_fill_(scoring.hidden(heads.shape[1], length, q.device), -torch.inf)
        out[rows] = (torch.softmax(scores, -1) @ values).transpose(0, 1).to(q.dtype)
    return out


def extend_attention_triton(
    q: torch.Tensor, kv: PagedKV, new: NewTokens, scoring: Scoring
) -> torch.Tensor:
    # q: [num_tokens, num_heads, head_dim] with any distance between tokens
    # -> [num_tokens, num_heads, v_head_dim]
    num_tokens, num_heads, head_dim = q.shape
    kv_heads, v_head_dim = kv.values.shape[1:]
    kv.check()
    assert q.stride()[1:] == (head_dim, 1), "the heads of a token lie side by side"
    blocks = Blocks.of(head_dim, v_head_dim, q.dtype)
    out = torch.empty((num_tokens, num_heads, v_head_dim), dtype=q.dtype, device=q.device)
    _extend_kernel[(-(-new.longest // blocks.BLOCK), num_heads, len(kv.lens))](
        q, *kv, new.starts, out, scoring.scaling, scoring.cap,
        scoring.window, q.stride(0), *kv.strides(), num_heads, num_heads // kv_heads,
        head_dim, v_head_dim,
        DIM=blocks.DIM, REST=blocks.REST, V_DIM=blocks.V_DIM, BLOCK=blocks.BLOCK,
        CAPPED=scoring.cap > 0, PRECISION=dot_precision(q.dtype),
        num_warps=4, num_stages=blocks.num_stages,
    )  # fmt: skip
    return out


@Kernel
def _extend_kernel(
    q, keys, values, table, rows, lens, starts, out, scaling, cap,
    window, q_stride, table_stride, key_stride, key_head_stride, value_stride, value_head_stride,
    num_heads, group, head_dim, v_head_dim,
    DIM: tl.constexpr, REST: tl.constexpr, V_DIM: tl.constexpr, BLOCK: tl.constexpr,
    CAPPED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # One program per block of new tokens, head and request.
    first = tl.program_id(0) * BLOCK
    head = tl.program_id(1)
    request = tl.program_id(2)
    length = tl.load(lens + request).to(tl.int32)
    start = tl.load(starts + request)
    num_new = (tl.load(starts + request + 1) - start).to(tl.int32)
    prefix = length - num_new
    # Nothing is read for a block beyond the request's last token, nor before the first token's
    # window; a window of the whole sequence is none.
    end = tl.where(first < num_new, tl.minimum(prefix + first + BLOCK, length), 0)
    window = tl.where(window < 0, length, window)
    left = tl.maximum(prefix + first - window + 1, 0)

    index = first + tl.arange(0, BLOCK)
    is_new = (index < num_new)[:, None]
    token = (start + index).to(tl.int64)[:, None]
    query, rest = queries_of(q + token * q_stride + head * head_dim, is_new, head_dim, DIM, REST)
    own = prefix + index[:, None]
    table += tl.load(rows + request) * table_stride
    keys += (head // group) * key_head_stride
    values += (head // group) * value_head_stride

    highest = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    found = tl.zeros([BLOCK, V_DIM], tl.float32)
    for begin in range(left, end, BLOCK):
        position = begin + tl.arange(0, BLOCK)
        present = position < end
        slot = tl.load(table + position, mask=present, other=0).to(tl.int64)
        near = (position[None, :] <= own) & (position[None, :] > own - window)
        highest, total, found = attend(
            query, rest, keys + slot * key_stride, values + slot * value_stride,
            present, present[None, :] & near, highest, total, found,
            scaling, cap, head_dim, v_head_dim, DIM, REST, V_DIM, CAPPED, PRECISION,
        )  # fmt: skip

    total = tl.where(total > 0, total, 1.0)
    result = (found / total[:, None]).to(out.dtype.element_ty)
    v_dim = tl.arange(0, V_DIM)[None, :]
    at = (token * num_heads + head) * v_head_dim + v_dim
    tl.store(out + at, result, mask=is_new & (v_dim < v_head_dim))
