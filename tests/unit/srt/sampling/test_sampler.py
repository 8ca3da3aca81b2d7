"""What changes logits before a token is chosen, and what does not change logprobs."""

from typing import Any

import pytest
import torch

from sglang.srt.core.messages import FinishReason
from sglang.srt.core.request import Req
from sglang.srt.core.sampling_params import SamplingParams
from sglang.srt.sampling.sampler import Sampler

VOCAB = 16
CPU = torch.device("cpu")


def make_req(prompt: list[int], output: list[int] | None = None, **options: Any) -> Req:
    own = {
        name: options.pop(name)
        for name in ("return_logprob", "eos_token_ids", "grammar", "top_logprobs_num")
        if name in options
    }
    params = SamplingParams(**{"temperature": 0.0, **options}).normalized()
    req = Req(rid="r", origin_input_ids=prompt, sampling_params=params, **own)
    req.output_ids = output or []
    return req


def adjusted(req: Req, logits: torch.Tensor, sampler: Sampler | None = None) -> torch.Tensor:
    """The logits that the choice is made from."""
    row = logits.clone().unsqueeze(0)
    (sampler or Sampler(VOCAB, CPU, 0)).sample(row, [req], [req.seq_len], [True])
    return row[0]


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.linspace(-2, 2, VOCAB)


def test_frequency_penalty_counts_outputs_only(logits: torch.Tensor) -> None:
    req = make_req([3, 3], [5, 5, 7], frequency_penalty=0.5)
    wanted = logits.clone()
    wanted[5] -= 1.0
    wanted[7] -= 0.5
    assert torch.allclose(adjusted(req, logits), wanted)


def test_presence_penalty_counts_once(logits: torch.Tensor) -> None:
    req = make_req([3], [5, 5, 7], presence_penalty=0.5)
    wanted = logits.clone()
    wanted[[5, 7]] -= 0.5
    assert torch.allclose(adjusted(req, logits), wanted)


def test_repetition_penalty_takes_prompt_and_output_and_respects_the_sign(
    logits: torch.Tensor,
) -> None:
    req = make_req([1, 1, 14], [13], repetition_penalty=2.0)
    wanted = logits.clone()
    wanted[1] *= 2.0
    wanted[[13, 14]] /= 2.0
    assert torch.allclose(adjusted(req, logits), wanted)


def test_penalties_follow_the_outputs_step_by_step(logits: torch.Tensor) -> None:
    options = {
        "frequency_penalty": 0.3,
        "presence_penalty": -0.2,
        "repetition_penalty": 1.3,
    }
    sampler = Sampler(VOCAB, CPU, 0)
    growing = make_req([2], **options)
    for token_id in (4, 4, 2, 9, 4, *range(VOCAB)):
        growing.output_ids.append(token_id)
        fresh = make_req([2], list(growing.output_ids), **options)
        assert torch.allclose(adjusted(growing, logits, sampler), adjusted(fresh, logits))


def test_penalties_of_one_row_leave_the_others_alone(logits: torch.Tensor) -> None:
    reqs = [
        make_req([1]),
        make_req([1], [5], frequency_penalty=1.0),
        make_req([2], [5, 6], presence_penalty=1.0),
    ]
    rows = logits.repeat(3, 1)
    Sampler(VOCAB, CPU, 0).sample(rows, reqs, [2, 2, 3], [True] * 3)
    assert torch.equal(rows[0], logits)
    assert (rows[1] != logits).nonzero().flatten().tolist() == [5]
    assert (rows[2] != logits).nonzero().flatten().tolist() == [5, 6]


def test_logit_bias_is_added(logits: torch.Tensor) -> None:
    wanted = logits.clone()
    wanted[2] += 100
    assert torch.allclose(adjusted(make_req([1], logit_bias={2: 100.0}), logits), wanted)


def test_end_tokens_are_forbidden_until_enough_tokens_came(logits: torch.Tensor) -> None:
    options = {"eos_token_ids": frozenset({15}), "stop_token_ids": [14], "min_new_tokens": 2}
    early = adjusted(make_req([1] * 9, [3], **options), logits)
    assert early.isinf().nonzero().flatten().tolist() == [14, 15]
    assert torch.equal(adjusted(make_req([1], [3, 3], **options), logits), logits)


def test_nothing_is_forbidden_when_ends_are_ignored(logits: torch.Tensor) -> None:
    req = make_req(
        [1], eos_token_ids=frozenset({15}), min_new_tokens=2, max_new_tokens=4, ignore_eos=True
    )
    assert torch.equal(adjusted(req, logits), logits)


def test_logprobs_ignore_what_was_adjusted(logits: torch.Tensor) -> None:
    req = make_req([1], logit_bias={0: 50.0}, return_logprob=True, top_logprobs_num=2)
    ids, rows = Sampler(VOCAB, CPU, 0).sample(logits.repeat(1, 1), [req], [1], [True])
    wanted = logits.log_softmax(-1)
    assert ids == [0]
    assert rows[0] is not None
    assert rows[0].logprobs == pytest.approx([wanted[0].item()])
    assert rows[0].top[0].token_ids == [15, 14]


def test_row_whose_prompt_goes_on_has_no_logprobs(logits: torch.Tensor) -> None:
    reqs = [make_req([1], return_logprob=True), make_req([1], return_logprob=True)]
    _, rows = Sampler(VOCAB, CPU, 0).sample(logits.repeat(2, 1), reqs, [1, 1], [False, True])
    assert rows[0] is None
    assert rows[1] is not None


def test_change_of_the_batch_changes_the_parameters(logits: torch.Tensor) -> None:
    sampler = Sampler(VOCAB, CPU, 0)
    biased, plain = make_req([1], logit_bias={0: 50.0}), make_req([1])
    for reqs, wanted in (([biased], [0]), ([plain, biased], [15, 0]), ([plain], [15])):
        ids, _ = sampler.sample(logits.repeat(len(reqs), 1), reqs, [1] * len(reqs), [True, True])
        assert ids == wanted


class OnlyToken:
    """A grammar that allows one token; the mask is a plain table of booleans."""

    def __init__(self, token_id: int) -> None:
        self.token_id = token_id

    def allocate_vocab_mask(
        self, vocab_size: int, batch_size: int, device: torch.device
    ) -> torch.Tensor:
        return torch.zeros(batch_size, vocab_size, dtype=torch.bool)

    def fill_vocab_mask(self, mask: torch.Tensor, idx: int) -> None:
        mask[idx, self.token_id] = True

    def move_vocab_mask(self, mask: torch.Tensor, device: torch.device) -> torch.Tensor:
        return mask

    def apply_vocab_mask(self, logits: torch.Tensor, vocab_mask: torch.Tensor) -> None:
        logits.masked_fill_(~vocab_mask, -torch.inf)


def test_grammars_rule_over_their_own_rows(logits: torch.Tensor) -> None:
    reqs = [make_req([1], grammar=OnlyToken(4)), make_req([1]), make_req([1], grammar=OnlyToken(6))]
    ids, _ = Sampler(VOCAB, CPU, 0).sample(logits.repeat(3, 1), reqs, [1] * 3, [True] * 3)
    assert ids == [4, 15, 6]


class EvenTokens:
    """A grammar that allows even tokens; fails where `fails` says."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails

    def allocate_vocab_mask(self, vocab_size: int, batch_size: int, device: Any) -> torch.Tensor:
        if self.fails == "allocate":
            raise RuntimeError("no mask")
        return torch.ones(batch_size, vocab_size, dtype=torch.bool)

    def fill_vocab_mask(self, mask: torch.Tensor, idx: int) -> None:
        if self.fails == "fill":
            raise RuntimeError("no way on")
        mask[idx] = (torch.arange(VOCAB) % 2 == 0) & (self.fails != "dead end")

    @staticmethod
    def move_vocab_mask(mask: torch.Tensor, device: Any) -> torch.Tensor:
        return mask

    @staticmethod
    def apply_vocab_mask(logits: torch.Tensor, mask: torch.Tensor) -> None:
        logits.masked_fill_(~mask, -torch.inf)


def sample_three(grammars: list[EvenTokens | None]) -> tuple[list[int], list[Req]]:
    """Three rows whose best token is the last one, 15."""
    reqs = [make_req([3], grammar=grammar) for grammar in grammars]
    rows = torch.linspace(-2, 2, VOCAB).repeat(len(reqs), 1)
    ids, _ = Sampler(VOCAB, CPU, 0).sample(rows, reqs, [1] * len(reqs), [True] * len(reqs))
    return ids, reqs


def test_only_constrained_rows_are_masked() -> None:
    ids, reqs = sample_three([EvenTokens(), None, EvenTokens()])
    assert ids == [14, 15, 14]
    assert [req.to_finish for req in reqs] == [None] * 3


def test_a_grammar_that_cannot_fill_its_row_ends_its_request_alone() -> None:
    ids, reqs = sample_three([EvenTokens(), EvenTokens("fill"), None])
    assert (ids[0], ids[2]) == (14, 15)
    assert reqs[0].to_finish is None
    assert reqs[2].to_finish is None
    assert reqs[1].to_finish is not None
    assert reqs[1].to_finish.status_code == 500
    assert "RuntimeError: no way on" in (reqs[1].to_finish.message or "")


def test_a_mask_that_fails_ends_the_constrained_requests_and_no_other() -> None:
    ids, reqs = sample_three([EvenTokens("allocate"), None, EvenTokens()])
    assert ids[1] == 15
    assert reqs[1].to_finish is None
    assert all(req.to_finish and req.to_finish.status_code == 500 for req in (reqs[0], reqs[2]))


def test_a_grammar_that_leaves_no_token_ends_its_request() -> None:
    ids, reqs = sample_three([EvenTokens("dead end"), None, EvenTokens()])
    assert ids[1:] == [15, 14]
    assert reqs[0].to_finish is not None
    assert reqs[0].to_finish.status_code == 500
    assert "it allows no token" in (reqs[0].to_finish.message or "")
    assert reqs[2].to_finish is None


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_row_without_numbers_gets_no_token_and_the_others_theirs(
    logits: torch.Tensor, value: float, temperature: float
) -> None:
    rows = logits.repeat(3, 1)
    rows[1, 4] = value
    reqs = [make_req([1], temperature=temperature, return_logprob=True) for _ in range(3)]
    ids, scored = Sampler(VOCAB, CPU, 0).sample(rows, reqs, [1] * 3, [True] * 3)
    assert ids[1] == -1
    assert all(0 <= token_id < VOCAB for token_id in (ids[0], ids[2]))
    assert all(row is not None for row in scored)


def test_a_row_of_which_nothing_is_left_gets_no_token() -> None:
    ids, _ = Sampler(VOCAB, CPU, 0).sample(
        torch.full((1, VOCAB), -torch.inf), [make_req([1])], [1], [True]
    )
    assert ids == [-1]


def test_the_grammar_of_an_answer_that_ended_is_asked_no_more() -> None:
    ended, open_ = make_req([3], grammar=EvenTokens("fill")), make_req([3], grammar=EvenTokens())
    ended.finished_reason = FinishReason(type="stop")
    rows = torch.linspace(-2, 2, VOCAB).repeat(2, 1)
    ids, _ = Sampler(VOCAB, CPU, 0).sample(rows, [ended, open_], [1, 1], [True, True])
    assert ids[1] == 14
    assert ended.to_finish is None
