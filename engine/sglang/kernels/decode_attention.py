"""Attention of one new token per request over the paged KV pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sglang.kernels.dispatch import Kernel, power_of_two
from sglang.kernels.paged_kv import PagedKV, block_len, dot_precision

if TYPE_CHECKING:
    import triton.language as tl

# A sequence is cut into so many parts that are computed side by side; few long sequences would
# otherwise leave most of a device idle.
_SPLITS = 8
_LEAST_DOT = 16  # rows and columns of the smallest product


def decode_attention_torch(q: torch.Tensor, kv: PagedKV, scaling: float) -> torch.Tensor:
    """The last token of each request attends to its whole sequence, in float32."""
    # q: [batch_size, num_heads, head_dim] -> like q
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    for request, length in enumerate(kv.lens.tolist()):
        keys, values = kv.sequence(request, length)
        # Heads that share a KV head are rows of one product: [kv_heads, group, head_dim].
        heads = q[request].float().view(keys.shape[0], -1, q.shape[2])
        weights = torch.softmax(heads @ keys.transpose(1, 2) * scaling, -1)
        out[request] = (weights @ values).flatten(0, 1)
    return out


def decode_attention_triton(q: torch.Tensor, kv: PagedKV, scaling: float) -> torch.Tensor:
    # q: [batch_size, num_heads, head_dim] with any distance between requests -> like q
    batch_size, num_heads, head_dim = q.shape
    kv_heads = kv.keys.shape[1]
    group = num_heads // kv_heads
    kv.check()
    assert q.stride()[1:] == (head_dim, 1), "the heads of a request lie side by side"
    dim = power_of_two(head_dim, _LEAST_DOT)
    parts = torch.empty(
        batch_size, num_heads, _SPLITS, head_dim, dtype=torch.float32, device=q.device
    )
    sums = torch.empty(batch_size, num_heads, _SPLITS, dtype=torch.float32, device=q.device)
    _split_kernel[(batch_size, kv_heads, _SPLITS)](
        q, *kv, parts, sums, scaling,
        q.stride(0), kv.table.stride(0), kv.keys.stride(0), num_heads, group, head_dim,
        SPLITS=_SPLITS, GROUP=power_of_two(group, _LEAST_DOT), DIM=dim,
        BLOCK=block_len(dim, q.dtype), PRECISION=dot_precision(q.dtype),
        num_warps=4, num_stages=2,
    )  # fmt: skip
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    _merge_kernel[(batch_size * num_heads,)](
        parts, sums, out, head_dim, SPLITS=_SPLITS, DIM=dim, num_warps=4
    )
    return out


@Kernel
def _split_kernel(
    q, keys, values, table, rows, lens, parts, sums, scaling,
    q_stride, table_stride, slot_stride, num_heads, group, head_dim,
    SPLITS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    # One program per request, KV head and part of the sequence; parts are whole blocks.
    request = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    length = tl.load(lens + request).to(tl.int32)
    part = tl.cdiv(tl.cdiv(length, SPLITS), BLOCK) * BLOCK
    end = tl.minimum(split * part + part, length)

    member = tl.arange(0, GROUP)
    dim = tl.arange(0, DIM)
    in_dim = dim[None, :] < head_dim
    head = kv_head * group + member
    in_heads = (member < group)[:, None] & in_dim
    q += request * q_stride + head[:, None] * head_dim + dim[None, :]
    query = tl.load(q, mask=in_heads, other=0.0).to(tl.float32)
    table += tl.load(rows + request) * table_stride

    # NOTE: everything is widened first; Triton's interpreter multiplies raw bfloat16 wrongly.
    highest = tl.full([GROUP], float("-inf"), tl.float32)
    total = tl.zeros([GROUP], tl.float32)
    found = tl.zeros([GROUP, DIM], tl.float32)
    for begin in range(split * part, end, BLOCK):
        position = begin + tl.arange(0, BLOCK)
        attended = position < end
        slot = tl.load(table + position, mask=attended, other=0).to(tl.int64)
        at = slot[:, None] * slot_stride + kv_head * head_dim + dim[None, :]
        inside = attended[:, None] & in_dim
        key = tl.load(keys + at, mask=inside, other=0.0).to(tl.float32)
        scores = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scaling
        scores = tl.where(attended[None, :], scores, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(scores, 1))
        shrink = tl.exp(highest - new_highest)
        weights = tl.exp(scores - new_highest[:, None])
        value = tl.load(values + at, mask=inside, other=0.0).to(tl.float32)
        found = found * shrink[:, None] + tl.dot(weights, value, input_precision=PRECISION)
        total = total * shrink + tl.sum(weights, 1)
        highest = new_highest

    # A part without tokens leaves zeros, and minus infinity as its sum's logarithm.
    total = tl.where(total > 0, total, 1.0)
    row = (request * num_heads + head) * SPLITS + split
    tl.store(sums + row, highest + tl.log(total), mask=member < group)
    parts += row[:, None] * head_dim + dim[None, :]
    tl.store(parts, found / total[:, None], mask=in_heads)


@Kernel
def _merge_kernel(parts, sums, out, head_dim, SPLITS: tl.constexpr, DIM: tl.constexpr):
    # One program per request and head.
    row = tl.program_id(0).to(tl.int64)
    split = row * SPLITS + tl.arange(0, SPLITS)
    dim = tl.arange(0, DIM)
    in_dim = dim < head_dim
    logs = tl.load(sums + split)
    weights = tl.exp(logs - tl.max(logs, 0))
    weights = weights / tl.sum(weights, 0)
    found = tl.load(
        parts + split[:, None] * head_dim + dim[None, :], mask=in_dim[None, :], other=0.0
    )
    result = tl.sum(found * weights[:, None], 0)
    tl.store(out + row * head_dim + dim, result.to(out.dtype.element_ty), mask=in_dim)
