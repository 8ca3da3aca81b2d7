"""Batches become flat tensors in the order of their requests."""

import pytest
import torch

from sglang.srt.core.batch import ForwardMode, ScheduleBatch
from sglang.srt.core.request import Req
from sglang.srt.core.sampling_params import SamplingParams
from sglang.srt.managers.tp_worker import build_forward_batch, default_running_requests


def req(prompt: list[int], outputs: list[int], row: int, **options: object) -> Req:
    made = Req("r", prompt, SamplingParams(), **options)  # type: ignore[arg-type]
    made.output_ids, made.req_pool_idx = outputs, row
    return made


def test_extend_takes_the_tokens_after_the_prefix() -> None:
    reqs = [req([1, 2, 3, 4], [], 1), req([5, 6], [7], 2)]
    batch = ScheduleBatch(
        reqs, ForwardMode.EXTEND, torch.tensor([11, 12, 13, 14, 15]), [2, 0], [2, 3]
    )
    forward = build_forward_batch(batch)
    assert forward.input_ids.tolist() == [3, 4, 5, 6, 7]
    assert forward.positions.tolist() == [2, 3, 0, 1, 2]
    assert forward.req_pool_indices.tolist() == [1, 2]
    assert forward.seq_lens.tolist() == forward.seq_lens_cpu == [4, 3]
    assert forward.extend_logprob_start_lens == [2, 3]


@pytest.mark.parametrize(
    ("start", "prefix", "length", "expected"),
    [(0, 0, 4, 0), (3, 0, 4, 3), (3, 2, 2, 1), (3, 0, 2, 2), (-1, 0, 4, 4), (4, 0, 4, 4)],
)
def test_logprob_start_is_relative_to_the_chunk(
    start: int, prefix: int, length: int, expected: int
) -> None:
    wanting = req([1, 2, 3, 4], [], 1, return_logprob=True, logprob_start_len=start)
    slots = torch.arange(length)
    batch = ScheduleBatch([wanting], ForwardMode.EXTEND, slots, [prefix], [length])
    assert build_forward_batch(batch).extend_logprob_start_lens == [expected]


def test_decode_takes_the_last_token_of_each() -> None:
    reqs = [req([1, 2], [8], 1), req([3], [4, 9], 2)]
    for made in reqs:
        made.kv_committed_len = 3
    forward = build_forward_batch(ScheduleBatch(reqs, ForwardMode.DECODE, torch.tensor([21, 22])))
    assert forward.input_ids.tolist() == [8, 9]
    assert forward.positions.tolist() == [2, 2]
    assert forward.seq_lens_cpu == [3, 3]
    assert forward.out_cache_loc.tolist() == [21, 22]


@pytest.mark.parametrize(("tokens", "requests"), [(10, 8), (2560, 10), (10**6, 256)])
def test_default_number_of_running_requests(tokens: int, requests: int) -> None:
    assert default_running_requests(tokens) == requests
