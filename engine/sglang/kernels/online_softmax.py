"""The step that attention kernels repeat: one block of a sequence, met by a block of queries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang.kernels.dispatch import Part

if TYPE_CHECKING:
    import triton.language as tl


@Part
def queries_of(q, rows, head_dim, DIM: tl.constexpr, REST: tl.constexpr):
    """Both pieces of the queries at q, of which `rows` exist, in float32."""
    # q: [QUERIES, 1] pointers to the first number, rows: [QUERIES, 1]
    dim = tl.arange(0, DIM)[None, :]
    query = tl.load(q + dim, mask=rows & (dim < head_dim), other=0.0).to(tl.float32)
    rest = query
    if REST > 0:
        more = DIM + tl.arange(0, REST)[None, :]
        rest = tl.load(q + more, mask=rows & (more < head_dim), other=0.0).to(tl.float32)
    return query, rest


@Part
def attend(
    query, rest, keys, values, present, attended, highest, total, found,
    scaling, cap, head_dim, v_head_dim,
    DIM: tl.constexpr, REST: tl.constexpr, V_DIM: tl.constexpr, CAPPED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Takes a block of keys and values into account.

    State of each query: its highest score so far, and weights relative to that score: their sum
    `total`, and the sum of values that they weigh, `found`.
    """
    # keys, values: [BLOCK] pointers to the first number of a head, present: [BLOCK]
    # attended: [QUERIES, BLOCK], highest, total: [QUERIES], found: [QUERIES, V_DIM]
    # NOTE: everything is widened first; Triton's interpreter multiplies raw bfloat16 wrongly.
    dim = tl.arange(0, DIM)[None, :]
    inside = present[:, None] & (dim < head_dim)
    key = tl.load(keys[:, None] + dim, mask=inside, other=0.0).to(tl.float32)
    scores = tl.dot(query, tl.trans(key), input_precision=PRECISION)
    if REST > 0:
        more = DIM + tl.arange(0, REST)[None, :]
        inside = present[:, None] & (more < head_dim)
        key = tl.load(keys[:, None] + more, mask=inside, other=0.0).to(tl.float32)
        scores += tl.dot(rest, tl.trans(key), input_precision=PRECISION)
    scores *= scaling
    if CAPPED:
        scores = cap * (2 * tl.sigmoid(2 * scores / cap) - 1)  # tanh
    scores = tl.where(attended, scores, float("-inf"))
    new_highest = tl.maximum(highest, tl.max(scores, 1))
    # A query that has attended to nothing yet has no highest score to be relative to.
    base = tl.where(new_highest == float("-inf"), 0.0, new_highest)
    shrink = tl.exp(highest - base)
    weights = tl.exp(scores - base[:, None])
    v_dim = tl.arange(0, V_DIM)[None, :]
    inside = present[:, None] & (v_dim < v_head_dim)
    value = tl.load(values[:, None] + v_dim, mask=inside, other=0.0).to(tl.float32)
    found = found * shrink[:, None] + tl.dot(weights, value, input_precision=PRECISION)
    return new_highest, total * shrink + tl.sum(weights, 1), found
