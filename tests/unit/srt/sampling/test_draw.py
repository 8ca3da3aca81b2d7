"""Drawn tokens follow the filtered distribution, and a seed decides them whatever the batch."""

from typing import Any

import pytest
import torch

from sglang.srt.core.request import Req
from sglang.srt.core.sampling_params import SamplingParams
from sglang.srt.sampling.draw import uniform_of
from sglang.srt.sampling.sampler import Sampler

VOCAB = 1000  # no multiple of the blocks that sums go by
CPU = torch.device("cpu")


def make_req(**params: Any) -> Req:
    return Req(rid="r", origin_input_ids=[1], sampling_params=SamplingParams(**params).normalized())


def logits_of(probs: list[float]) -> torch.Tensor:
    """[vocab]; the tokens after those given are impossible."""
    logits = torch.full((VOCAB,), -1e9)
    logits[: len(probs)] = torch.tensor(probs).log()
    return logits


def draw(logits: torch.Tensor, reqs: list[Req], positions: list[int], seed: int = 0) -> list[int]:
    """One token per request, all from the same logits."""
    sampler = Sampler(VOCAB, CPU, random_seed=seed)
    batch = logits.repeat(len(reqs), 1)
    return sampler.sample(batch, reqs, positions, [True] * len(reqs))[0]


def frequencies(logits: torch.Tensor, count: int = 4000, **params: Any) -> torch.Tensor:
    reqs = [make_req(**params)] * count
    tokens = torch.tensor(draw(logits, reqs, [1] * count))
    return torch.bincount(tokens, minlength=VOCAB) / count


def test_frequencies_are_the_probabilities() -> None:
    wanted = [0.4, 0.3, 0.2, 0.1]
    assert frequencies(logits_of(wanted))[:4].tolist() == pytest.approx(wanted, abs=0.04)


def test_temperature_flattens() -> None:
    probs = torch.tensor([0.7, 0.2, 0.1])
    wanted = probs.sqrt() / probs.sqrt().sum()
    seen = frequencies(logits_of(probs.tolist()), temperature=2.0)
    assert seen[:3].tolist() == pytest.approx(wanted.tolist(), abs=0.04)


@pytest.mark.parametrize(
    ("params", "wanted"),
    [
        ({"top_k": 2}, [4 / 7, 3 / 7, 0, 0]),
        ({"top_p": 0.6}, [4 / 7, 3 / 7, 0, 0]),
        ({"top_p": 0.35}, [1, 0, 0, 0]),
        ({"min_p": 0.45}, [4 / 9, 3 / 9, 2 / 9, 0]),
        ({"top_k": 3, "top_p": 0.7}, [4 / 7, 3 / 7, 0, 0]),
        ({"top_k": 3, "min_p": 0.6}, [4 / 7, 3 / 7, 0, 0]),
    ],
)
def test_filters_keep_the_best_and_renormalize(params: dict[str, Any], wanted: list[float]) -> None:
    seen = frequencies(logits_of([0.4, 0.3, 0.2, 0.1]), **params)
    assert seen[:4].tolist() == pytest.approx(wanted, abs=0.04)


def test_top_k_keeps_exactly_k_of_equal_tokens() -> None:
    assert (frequencies(torch.zeros(VOCAB), top_k=5) > 0).sum() == 5


def test_top_p_may_need_more_tokens_than_are_ranked_first() -> None:
    seen = frequencies(torch.zeros(VOCAB), top_p=0.9, count=8000)
    assert 850 <= (seen > 0).sum() <= 901


def test_wide_distributions_reach_every_part_of_the_vocabulary() -> None:
    seen = frequencies(torch.zeros(VOCAB), count=8000)
    assert (seen > 0).sum() > 980
    assert seen.view(10, -1).sum(-1).tolist() == pytest.approx([0.1] * 10, abs=0.02)


def test_rows_with_different_filters_do_not_disturb_each_other() -> None:
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(2))
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.5},
        {"top_k": 4},
        {"top_p": 0.3},
        {"min_p": 0.2},
        {"top_k": 50, "top_p": 0.9, "min_p": 0.01},
    ]
    reqs = [make_req(sampling_seed=11, **kind) for kind in kinds]
    alone = [draw(logits, [req], [7])[0] for req in reqs]
    assert draw(logits, reqs, [7] * len(reqs)) == alone
    assert draw(logits, reqs[::-1], [7] * len(reqs)) == alone[::-1]


def test_seed_gives_other_tokens_at_other_positions() -> None:
    reqs = [make_req(sampling_seed=5)] * 50
    assert len(set(draw(torch.zeros(VOCAB), reqs, list(range(50))))) > 40


def test_different_seeds_give_different_tokens() -> None:
    reqs = [make_req(sampling_seed=seed) for seed in range(50)]
    assert len(set(draw(torch.zeros(VOCAB), reqs, [1] * 50))) > 40


def test_requests_without_a_seed_differ_between_servers() -> None:
    reqs = [make_req()] * 20
    logits = torch.zeros(VOCAB)
    assert draw(logits, reqs, [1] * 20, seed=1) != draw(logits, reqs, [1] * 20, seed=2)


@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1e-6, 9e-6])
def test_tiny_temperatures_are_greedy(temperature: float) -> None:
    logits = torch.zeros(VOCAB)
    logits[321] = 1e-6
    assert draw(logits, [make_req(temperature=temperature, top_p=0.9)] * 8, [1] * 8) == [321] * 8


def test_uniform_numbers_fill_the_unit_interval_evenly() -> None:
    numbers = torch.tensor([uniform_of(seed, pos) for seed in range(40) for pos in range(100)])
    assert torch.histc(numbers, 10, 0, 1).tolist() == pytest.approx([400] * 10, rel=0.2)
    assert float(numbers.min()) >= 0
    assert float(numbers.max()) < 1


def test_negative_seeds_are_seeds_too() -> None:
    assert uniform_of(-1, 3) == uniform_of(-1, 3)
    assert uniform_of(-1, 3) != uniform_of(1, 3)
