"""Masks are filled beside the model, and are those that would be filled after it."""

import threading
from typing import Any

import pytest
import torch

from sglang.srt.core.batch import BatchLayout, ForwardMode, ScheduleBatch
from sglang.srt.core.messages import FinishReason
from sglang.srt.core.request import Req
from sglang.srt.core.sampling_params import SamplingParams
from sglang.srt.sampling.grammar_mask import GrammarMasks
from sglang.srt.sampling.sampler import Sampler

VOCAB = 16
CPU = torch.device("cpu")
GUARD = 30.0  # seconds, against hangs


class CountsUp:
    """Allows the token after the one that it accepted last; notes who filled."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.filled = threading.Event()
        self.filled_by: list[str] = []

    def allocate_vocab_mask(self, vocab_size: int, batch_size: int, device: Any) -> torch.Tensor:
        return torch.zeros(batch_size, vocab_size, dtype=torch.bool)

    def fill_vocab_mask(self, mask: torch.Tensor, idx: int) -> None:
        mask[idx, self.last + 1] = True
        self.filled_by.append(threading.current_thread().name)
        self.filled.set()

    @staticmethod
    def move_vocab_mask(mask: torch.Tensor, device: Any) -> torch.Tensor:
        return mask

    @staticmethod
    def apply_vocab_mask(logits: torch.Tensor, mask: torch.Tensor) -> None:
        logits.masked_fill_(~mask, -torch.inf)


def req_of(grammar: Any, **options: Any) -> Req:
    params = SamplingParams(temperature=0.0, **options).normalized()
    return Req(
        rid="r",
        origin_input_ids=[1],
        sampling_params=params,
        grammar=grammar,
        eos_token_ids=frozenset({15}),
    )


def batch_of(reqs: list[Req], is_final: list[bool] | None = None) -> ScheduleBatch:
    layout = BatchLayout([], [], [], [], [], is_final or [True] * len(reqs))
    return ScheduleBatch(reqs, ForwardMode.DECODE, torch.zeros(len(reqs)), layout)


def sampled(masks: GrammarMasks, reqs: list[Req]) -> list[int]:
    sampler = Sampler(VOCAB, CPU, 0, grammar_masks=masks)
    logits = torch.linspace(-2, 2, VOCAB).repeat(len(reqs), 1)
    return sampler.sample(logits, reqs, [1] * len(reqs), [True] * len(reqs))[0]


def test_the_mask_is_filled_before_the_pass_is_over() -> None:
    masks, first, second = GrammarMasks(), CountsUp(3), CountsUp(7)
    reqs = [req_of(first), req_of(None), req_of(second)]
    masks.begin(batch_of(reqs), VOCAB, CPU)
    assert first.filled.wait(GUARD)  # nobody has applied anything
    assert second.filled.wait(GUARD)
    assert sampled(masks, reqs) == [4, 15, 8]
    assert len(first.filled_by) == 1
    assert first.filled_by[0].startswith("sglang-grammar-mask")


def test_a_mask_begun_is_the_one_filled_when_it_is_applied() -> None:
    for last in range(VOCAB - 1):
        masks, reqs = GrammarMasks(), [req_of(CountsUp(last)), req_of(CountsUp(VOCAB - 2 - last))]
        masks.begin(batch_of(reqs), VOCAB, CPU)
        assert sampled(masks, reqs) == sampled(GrammarMasks(), reqs)


def test_it_waits_until_the_grammar_knows_the_token_before() -> None:
    masks, grammar = GrammarMasks(), CountsUp(3)
    batch = batch_of([req_of(grammar)])
    batch.history_ready = threading.Event()
    masks.begin(batch, VOCAB, CPU)
    grammar.last = 9  # the result of the pass before is taken in while this one computes
    batch.history_ready.set()
    assert sampled(masks, batch.reqs) == [10]
    assert len(grammar.filled_by) == 1


def test_rows_that_ended_or_go_on_with_their_prompt_are_not_filled() -> None:
    ended, prompt, open_ = CountsUp(1), CountsUp(2), CountsUp(3)
    reqs = [req_of(ended), req_of(prompt), req_of(open_)]
    reqs[0].finished_reason = FinishReason(type="stop")
    masks = GrammarMasks()
    masks.begin(batch_of(reqs, [True, False, True]), VOCAB, CPU)
    sampler = Sampler(VOCAB, CPU, 0, grammar_masks=masks)
    logits = torch.linspace(-2, 2, VOCAB).repeat(3, 1)
    assert sampler.sample(logits, reqs, [1] * 3, [True, False, True])[0][2] == 4
    assert (ended.filled_by, prompt.filled_by, len(open_.filled_by)) == ([], [], 1)


def test_a_mask_of_other_requests_is_not_used() -> None:
    masks = GrammarMasks()
    masks.begin(batch_of([req_of(CountsUp(1))]), VOCAB, CPU)
    assert sampled(masks, [req_of(CountsUp(5))]) == [6]
    assert sampled(masks, [req_of(CountsUp(6))]) == [7]


def test_a_failure_in_the_thread_ends_its_request_alone() -> None:
    class Broken(CountsUp):
        def fill_vocab_mask(self, mask: torch.Tensor, idx: int) -> None:
            raise RuntimeError("no way on")

    masks, reqs = GrammarMasks(), [req_of(Broken(1)), req_of(CountsUp(5))]
    masks.begin(batch_of(reqs), VOCAB, CPU)
    assert sampled(masks, reqs)[1] == 6
    assert reqs[0].to_finish is not None
    assert "RuntimeError: no way on" in (reqs[0].to_finish.message or "")
    assert reqs[1].to_finish is None


@pytest.mark.parametrize(("last", "token_id"), [(3, 4), (14, 15)])
def test_an_answer_that_can_only_end_ends_though_it_is_short(last: int, token_id: int) -> None:
    """15 is the end token."""
    req = req_of(CountsUp(last), min_new_tokens=4, max_new_tokens=8)
    assert sampled(GrammarMasks(), [req]) == [token_id]
    assert req.to_finish is None
