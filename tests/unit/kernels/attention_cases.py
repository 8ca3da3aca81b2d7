"""Attention over scattered slots: kernel and twin agree, and garbage beyond the ends is unseen."""

import pytest
import torch

from sglang.kernels.decode_attention import decode_attention_torch, decode_attention_triton
from sglang.kernels.extend_attention import (
    NewTokens,
    extend_attention_torch,
    extend_attention_triton,
)
from sglang.kernels.paged_kv import PagedKV, Scoring

# query heads, KV heads, numbers of a head
SHAPES = [
    (2, 2, 16, torch.float32), (6, 2, 32, torch.bfloat16), (9, 3, 64, torch.float32),
    (4, 1, 24, torch.bfloat16), (4, 2, 16, torch.float16),
]  # fmt: skip
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
LENS = [1, 63, 64, 65, 7, 200]
PLAIN = Scoring(0.3)
SCORINGS = {
    "window": Scoring(0.3, 10), "window of a block": Scoring(0.3, 64), "own token": Scoring(0.3, 1),
    "wide window": Scoring(0.3, 199), "cap": Scoring(0.3, cap=2.0),
    "both": Scoring(0.5, 33, 1.5),
}  # fmt: skip


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(5)


def pool_of(
    lens: list[int], kv_heads: int, head_dim: int, dtype: torch.dtype, page_size: int = 1
) -> PagedKV:
    """Pages in random order; NaN wherever no request has a token, and a table full of nonsense."""
    pages_of = [-(-length // page_size) for length in lens]
    pages = torch.randperm(sum(pages_of) + 7)
    buffers = torch.full((2, len(pages) * page_size, kv_heads, head_dim), torch.nan)
    table = torch.full((len(lens) + 2, max(lens) + 9), 1 << 30, dtype=torch.int32)
    rows = torch.randperm(len(lens) + 2)[: len(lens)]
    for row, length, num_pages in zip(rows, lens, pages_of, strict=True):
        own, pages = pages[:num_pages], pages[num_pages:]
        slots = (own[:, None] * page_size + torch.arange(page_size)).flatten()[:length]
        table[row, :length] = slots.int()
        buffers[:, slots] = torch.randn(2, length, kv_heads, head_dim)
    keys, values = buffers.to(dtype)
    return PagedKV(keys, values, table, rows, torch.tensor(lens))


def queries(num_tokens: int, num_heads: int, head_dim: int, dtype: torch.dtype) -> torch.Tensor:
    """Views into wider rows, as projections give them."""
    wide = torch.randn(num_tokens, num_heads * head_dim + 40).to(dtype)
    return wide[:, 8 : 8 + num_heads * head_dim].view(num_tokens, num_heads, head_dim)


def close(ours: torch.Tensor, twin: torch.Tensor) -> None:
    assert ours.is_contiguous() and ours.dtype == twin.dtype
    limit = TOLERANCE[twin.dtype]
    torch.testing.assert_close(ours, twin, rtol=limit, atol=limit)


def check_decode(q: torch.Tensor, kv: PagedKV, scoring: Scoring, num_splits: int = 8) -> None:
    ours = decode_attention_triton(q, kv, scoring, num_splits)
    close(ours, decode_attention_torch(q, kv, scoring))


def check_extend(requests: list[tuple[int, int]], kv: PagedKV, num_heads: int, q_dtype: torch.dtype,
                 scoring: Scoring = PLAIN) -> None:  # fmt: skip
    news = [new for _, new in requests]
    starts = torch.tensor([0, *torch.tensor(news).cumsum(0).tolist()])
    q = queries(sum(news), num_heads, kv.keys.shape[2], q_dtype)
    new = NewTokens(starts, max(news))
    ours = extend_attention_triton(q, kv, new, scoring)
    close(ours, extend_attention_torch(q, kv, new, scoring))


def totals(requests: list[tuple[int, int]]) -> list[int]:
    return [prefix + new for prefix, new in requests]


# (prefix, new): nothing cached, one new token, block borders.
REQUESTS = [(0, 5), (9, 1), (60, 70), (64, 64), (0, 1)]


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize(("num_heads", "kv_heads", "head_dim", "dtype"), SHAPES)
def test_decode(
    num_heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, page_size: int
) -> None:
    kv = pool_of(LENS, kv_heads, head_dim, dtype, page_size)
    check_decode(queries(6, num_heads, head_dim, dtype), kv, Scoring(head_dim**-0.5))


def test_decode_of_sequences_longer_than_a_block_per_part() -> None:
    kv = pool_of([1100, 513, 512], 1, 16, torch.float32)
    check_decode(queries(3, 3, 16, torch.float32), kv, PLAIN)


@pytest.mark.parametrize("num_splits", [1, 2, 3, 7, 16])
def test_decode_in_any_number_of_parts(num_splits: int) -> None:
    kv = pool_of([1100, 1, 64, 300], 2, 16, torch.float32)
    check_decode(queries(4, 4, 16, torch.float32), kv, PLAIN, num_splits)
    check_decode(queries(4, 4, 16, torch.float32), kv, Scoring(0.3, 130), num_splits)


def test_decode_with_large_scores() -> None:
    kv = pool_of([100, 5], 2, 16, torch.float32)
    check_decode(queries(2, 4, 16, torch.float32) * 200, kv, Scoring(1.0))


def test_decode_of_more_heads_than_a_program_takes() -> None:
    kv = pool_of([40, 3], 1, 160, torch.float32)
    check_decode(queries(2, 50, 160, torch.float32), kv, PLAIN)


@pytest.mark.parametrize("scoring", SCORINGS.values(), ids=SCORINGS)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_windows_and_caps(scoring: Scoring, dtype: torch.dtype) -> None:
    kv = pool_of(LENS, 2, 16, dtype)
    check_decode(queries(6, 4, 16, dtype) * 3, kv, scoring)
    kv = pool_of(totals([*REQUESTS, (190, 20)]), 2, 16, dtype, page_size=4)
    check_extend([*REQUESTS, (190, 20)], kv, 4, dtype, scoring)


def test_a_window_hides_what_lies_before_it() -> None:
    kv = pool_of([80], 1, 16, torch.float32)
    q = queries(1, 2, 16, torch.float32)
    before = decode_attention_triton(q, kv, Scoring(0.3, 20))
    kv.keys[kv.table[kv.rows[0], :60].long()] = torch.nan
    assert torch.equal(decode_attention_triton(q, kv, Scoring(0.3, 20)), before)
    assert decode_attention_triton(q, kv, Scoring(0.3, 21)).isnan().all()


def latents(lens: list[int], head_dim: int, rank: int, dtype: torch.dtype) -> PagedKV:
    """One KV head whose values are the first numbers of its keys."""
    kv = pool_of(lens, 1, head_dim, dtype, page_size=4)
    return kv._replace(values=kv.keys[..., :rank])


@pytest.mark.parametrize(
    ("num_heads", "head_dim", "rank", "dtype"),
    [(4, 24, 16, torch.float32), (16, 576, 512, torch.bfloat16), (20, 288, 256, torch.float32)],
)
def test_values_that_are_a_part_of_the_keys(
    num_heads: int, head_dim: int, rank: int, dtype: torch.dtype
) -> None:
    kv = latents([1, 70, 33], head_dim, rank, dtype)
    scoring = Scoring(head_dim**-0.5)
    check_decode(queries(3, num_heads, head_dim, dtype), kv, scoring)
    requests = [(0, 5), (30, 20)]
    check_extend(requests, latents(totals(requests), head_dim, rank, dtype), 3, dtype, scoring)


def test_values_narrower_than_keys() -> None:
    kv = pool_of([30, 90], 2, 24, torch.float32)
    kv = kv._replace(values=kv.values[..., :8].contiguous())
    check_decode(queries(2, 4, 24, torch.float32), kv, PLAIN)


@pytest.mark.parametrize("dtype", [torch.float8_e5m2, torch.float8_e4m3fn, torch.bfloat16])
def test_a_pool_of_a_smaller_type_than_the_queries(dtype: torch.dtype) -> None:
    kv = pool_of(totals(REQUESTS), 2, 16, dtype, page_size=4)
    check_decode(queries(5, 4, 16, torch.float32), kv, PLAIN)
    check_extend(REQUESTS, kv, 4, torch.float32)


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize(("num_heads", "kv_heads", "head_dim", "dtype"), SHAPES)
def test_extend(
    num_heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, page_size: int
) -> None:
    kv = pool_of(totals(REQUESTS), kv_heads, head_dim, dtype, page_size)
    check_extend(REQUESTS, kv, num_heads, dtype, Scoring(head_dim**-0.5))


def test_extend_of_one_request_without_a_prefix() -> None:
    check_extend([(0, 130)], pool_of([130], 1, 16, torch.float32), 2, torch.float32)


def test_extend_of_wide_heads() -> None:
    check_extend([(3, 40)], pool_of([43], 1, 160, torch.bfloat16), 2, torch.bfloat16)
