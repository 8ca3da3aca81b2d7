"""Batches become flat tensors in the order of their requests."""

import pytest
import torch

from sglang.srt.core.batch import FUTURE
from sglang.srt.core.request import Req
from sglang.srt.core.sampling_params import SamplingParams
from sglang.srt.managers.batch_layout import decode_batch, mixed_batch, prefill_batch
from sglang.srt.managers.tp_worker import build_forward_batch, default_running_requests


def req(prompt: list[int], outputs: list[int], row: int, **options: object) -> Req:
    made = Req("r", prompt, SamplingParams(), **options)  # type: ignore[arg-type]
    made.output_ids, made.req_pool_idx = outputs, row
    return made


def test_extend_takes_the_tokens_after_the_prefix() -> None:
    reqs = [req([1, 2, 3, 4], [], 1), req([5, 6], [7], 2)]
    for made, committed in zip(reqs, [4, 3], strict=True):
        made.kv_committed_len = committed
    batch = prefill_batch(reqs, [2, 3], torch.tensor([11, 12, 13, 14, 15]))
    forward = build_forward_batch(batch)
    assert batch.layout.is_final == [True, True]
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
    wanting.kv_committed_len = prefix + length
    batch = prefill_batch([wanting], [length], slots)
    assert batch.layout.is_final == [prefix + length == 4]
    assert build_forward_batch(batch).extend_logprob_start_lens == [expected]


def test_decode_takes_the_last_token_of_each() -> None:
    reqs = [req([1, 2], [8], 1), req([3], [4, 9], 2)]
    for made in reqs:
        made.kv_committed_len = 3
    forward = build_forward_batch(decode_batch(reqs, torch.tensor([21, 22])))
    assert forward.input_ids.tolist() == [8, 9]
    assert forward.positions.tolist() == [2, 2]
    assert forward.seq_lens_cpu == [3, 3]
    assert forward.out_cache_loc.tolist() == [21, 22]


def test_a_token_that_a_running_pass_chooses_is_left_open() -> None:
    reqs = [req([1, 2], [8], 1), req([3], [4], 2)]
    reqs[0].kv_committed_len, reqs[1].kv_committed_len = 3, 3
    batch = decode_batch(reqs, torch.tensor([21, 22]))
    assert batch.layout.input_ids == [8, FUTURE]
    assert batch.layout.futures == {1: reqs[1]}


def test_mixed_batch_has_the_prompts_first() -> None:
    prompt, answer = req([1, 2, 3], [], 1), req([4, 5], [6], 2)
    prompt.kv_committed_len = answer.kv_committed_len = 3
    first = prefill_batch([prompt], [3], torch.tensor([11, 12, 13]))
    batch = mixed_batch(first, decode_batch([answer], torch.tensor([21])))
    forward = build_forward_batch(batch)
    assert forward.forward_mode.is_mixed() and forward.forward_mode.is_extend()
    assert forward.input_ids.tolist() == [1, 2, 3, 6]
    assert forward.positions.tolist() == [0, 1, 2, 2]
    assert (forward.extend_prefix_lens, forward.extend_seq_lens) == ([0, 2], [3, 1])
    assert forward.out_cache_loc.tolist() == [11, 12, 13, 21]
    assert batch.num_prompts == 1


@pytest.mark.parametrize(("tokens", "requests"), [(10, 8), (2560, 10), (10**6, 256)])
def test_default_number_of_running_requests(tokens: int, requests: int) -> None:
    assert default_running_requests(tokens) == requests
