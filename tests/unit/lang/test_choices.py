"""The three ways to decide."""

import pytest

import sglang as sgl
from sglang.lang.choices import ChoiceScores

CHOICES = ["short", "rather long", "middle"]


def scores(rows, alone=None) -> ChoiceScores:
    triples = [[(value, 0, "") for value in row] for row in rows]
    others = None if alone is None else [[(value, 0, "") for value in row] for row in alone]
    return ChoiceScores(CHOICES, triples, [[] for _ in rows], others)


def test_length_normalized_takes_the_best_mean() -> None:
    decision = sgl.token_length_normalized(scores([[-2.0], [-0.5, -2.5], [-1.4, -1.4]]))
    assert decision.decision == "middle"
    assert decision.meta_info["normalized_prompt_logprobs"] == [-2.0, -1.5, -1.4]
    assert len(decision.meta_info["input_token_logprobs"]) == 3
    assert decision.meta_info["output_token_logprobs"] == [[], [], []]
    assert not sgl.token_length_normalized.requires_unconditional_logprobs


def test_greedy_follows_the_likeliest_token() -> None:
    rows = [[-2.0], [-0.5, -9.0], [-0.5, -8.0, -9.0]]
    decision = sgl.greedy_token_selection(scores(rows))
    assert decision.decision == "middle"
    matrix = decision.meta_info["greedy_logprob_matrix"]
    assert matrix == [[-2.0, -2.0, -2.0], [-0.5, -9.0, -4.75], [-0.5, -8.0, -9.0]]


def test_greedy_continues_short_choices_with_their_mean() -> None:
    # After the shared first token the short choice goes on with -1.0, which beats -1.5.
    assert sgl.greedy_token_selection(scores([[-1.0], [-1.0, -1.5], [-3.0]])).decision == "short"


def test_greedy_takes_the_first_of_equals() -> None:
    assert sgl.greedy_token_selection(scores([[-1.0], [-1.0], [-1.0]])).decision == "short"


def test_unconditional_takes_what_the_prompt_helps_most() -> None:
    rows, alone = [[-1.0], [-3.0, -3.0], [-2.0]], [[None], [None, -9.0], [-2.5]]
    decision = sgl.unconditional_likelihood_normalized(scores(rows, alone))
    assert decision.decision == "rather long"
    gains = decision.meta_info["normalized_unconditional_prompt_logprobs"]
    assert gains == [-1.0, pytest.approx(1.5), 0.5]
    assert sgl.unconditional_likelihood_normalized.requires_unconditional_logprobs
