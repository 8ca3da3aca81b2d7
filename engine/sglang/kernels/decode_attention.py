"""Attention of one new token per request over the paged KV pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sglang.kernels.dispatch import Kernel, power_of_two
from sglang.kernels.online_softmax import attend, queries_of
from sglang.kernels.paged_kv import LEAST_DOT, Blocks, PagedKV, Scoring, dot_precision

if TYPE_CHECKING:
    import triton.language as tl

# A sequence is cut into so many parts that are computed side by side; few long sequences would
# otherwise leave most of a device idle.
NUM_KV_SPLITS = 8


def decode_attention_torch(q: torch.Tensor, kv: PagedKV, scoring: Scoring) -> torch.Tensor:
    """The last token of each request attends to its sequence, in float32."""
    # q: [batch_size, num_heads, head_dim] -> [batch_size, num_heads, v_head_dim]
    out = torch.empty((*q.shape[:2], kv.values.shape[2]), dtype=q.dtype, device=q.device)
    for request, length in enumerate(kv.lens.tolist()):
        keys, values = kv.sequence(request, length)
        # Heads that share a KV head are rows of one product: [kv_heads, group, head_dim].
        heads = q[request].float().view(keys.shape[0], -1, q.shape[2])
        scores = scoring.of(heads @ keys.transpose(1, 2))
        scores.masked_fill_(scoring.hidden(1, length, q.device), -torch.inf)
        out[request] = (torch.softmax(scores, -1) @ values).flatten(0, 1)
    return out


def decode_attention_triton(
    q: torch.Tensor, kv: PagedKV, scoring: Scoring, num_splits: int = NUM_KV_SPLITS
) -> torch.Tensor:
    # q: [batch_size, num_heads, head_dim] with any distance between requests
    # -> [batch_size, num_heads, v_head_dim]
    batch_size, num_heads, head_dim = q.shape
    kv_heads, v_head_dim = kv.values.shape[1:]
    group = num_heads // kv_heads
    kv.check()
    assert q.stride()[1:] == (head_dim, 1), "the heads of a request lie side by side"
    blocks = Blocks.of(head_dim, v_head_dim, q.dtype)
    # Queries of a KV head that one program takes; wide ones would not fit beside each other.
    heads = min(power_of_two(group, LEAST_DOT), max(LEAST_DOT, blocks.BLOCK))
    rows = (batch_size, num_heads, num_splits)
    parts = torch.empty((*rows, v_head_dim), dtype=torch.float32, device=q.device)
    sums = torch.empty(rows, dtype=torch.float32, device=q.device)
    _split_kernel[(batch_size, kv_heads * -(-group // heads), num_splits)](
        q, *kv, parts, sums, scoring.scaling, scoring.cap,
        scoring.window, q.stride(0), *kv.strides(), num_heads, group, num_splits,
        head_dim, v_head_dim,
        HEADS=heads, DIM=blocks.DIM, REST=blocks.REST, V_DIM=blocks.V_DIM, BLOCK=blocks.BLOCK,
        CAPPED=scoring.cap > 0, PRECISION=dot_precision(q.dtype),
        num_warps=4, num_stages=blocks.num_stages,
    )  # fmt: skip
    out = torch.empty((batch_size, num_heads, v_head_dim), dtype=q.dtype, device=q.device)
    _merge_kernel[(batch_size * num_heads,)](
        parts, sums, out, num_splits, v_head_dim,
        SPLITS=power_of_two(num_splits), V_DIM=blocks.V_DIM, num_warps=4,
    )  # fmt: skip
    return out


@Kernel
def _split_kernel(
    q, keys, values, table, rows, lens, parts, sums, scaling, cap,
    window, q_stride, table_stride, key_stride, key_head_stride, value_stride, value_head_stride,
    num_heads, group, num_splits, head_dim, v_head_dim,
    HEADS: tl.constexpr, DIM: tl.constexpr, REST: tl.constexpr, V_DIM: tl.constexpr,
    BLOCK: tl.constexpr, CAPPED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # One program per request, block of query heads and part of what is attended to; parts are
    # whole blocks.
    request = tl.program_id(0).to(tl.int64)
    turns = tl.cdiv(group, HEADS)  # programs that share a KV head
    kv_head = tl.program_id(1) // turns
    split = tl.program_id(2)
    length = tl.load(lens + request).to(tl.int32)
    first = tl.where(window < 0, 0, tl.maximum(length - window, 0))
    part = tl.cdiv(tl.cdiv(length - first, num_splits), BLOCK) * BLOCK
    start = first + split * part
    end = tl.minimum(start + part, length)

    member = (tl.program_id(1) % turns) * HEADS + tl.arange(0, HEADS)
    in_group = member < group
    head = kv_head * group + member
    q += request * q_stride + head[:, None] * head_dim
    query, rest = queries_of(q, in_group[:, None], head_dim, DIM, REST)
    table += tl.load(rows + request) * table_stride
    keys += kv_head * key_head_stride
    values += kv_head * value_head_stride

    highest = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    found = tl.zeros([HEADS, V_DIM], tl.float32)
    for begin in range(start, end, BLOCK):
        position = begin + tl.arange(0, BLOCK)
        present = position < end
        slot = tl.load(table + position, mask=present, other=0).to(tl.int64)
        highest, total, found = attend(
            query, rest, keys + slot * key_stride, values + slot * value_stride,
            present, present[None, :], highest, total, found,
            scaling, cap, head_dim, v_head_dim, DIM, REST, V_DIM, CAPPED, PRECISION,
        )  # fmt: skip

    # A part without tokens leaves zeros, and minus infinity as its sum's logarithm.
    total = tl.where(total > 0, total, 1.0)
    row = (request * num_heads + head) * num_splits + split
    tl.store(sums + row, highest + tl.log(total), mask=in_group)
    v_dim = tl.arange(0, V_DIM)[None, :]
    parts += row[:, None] * v_head_dim + v_dim
    tl.store(parts, found / total[:, None], mask=in_group[:, None] & (v_dim < v_head_dim))


@Kernel
def _merge_kernel(
    parts, sums, out, num_splits, v_head_dim, SPLITS: tl.constexpr, V_DIM: tl.constexpr
):
    # One program per request and head.
    row = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS)
    computed = split < num_splits
    split += row * num_splits
    dim = tl.arange(0, V_DIM)
    in_dim = dim < v_head_dim
    logs = tl.load(sums + split, mask=computed, other=float("-inf"))
    weights = tl.exp(logs - tl.max(logs, 0))
    weights = weights / tl.sum(weights, 0)
    found = tl.load(
        parts + split[:, None] * v_head_dim + dim[None, :],
        mask=computed[:, None] & in_dim[None, :],
        other=0.0,
    )
    result = tl.sum(found * weights[:, None], 0)
    tl.store(out + row * v_head_dim + dim, result.to(out.dtype.element_ty), mask=in_dim)
