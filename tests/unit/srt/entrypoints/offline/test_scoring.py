"""Prompts and scores of `score`, and vectors of `encode`."""

import math

import pytest

from sglang.srt.entrypoints.offline.scoring import check_labels, score_prompts, scores_of
from sglang.srt.entrypoints.offline.vectors import shortened


def answer(*logprobs: float) -> dict[str, object]:
    row = [[logprob, token, None] for token, logprob in enumerate(logprobs)]
    return {"meta_info": {"output_token_ids_logprobs": [row]}}


def test_each_item_follows_the_query_or_precedes_it() -> None:
    assert score_prompts("q", ["a", "b"], item_first=False) == ["qa", "qb"]
    assert score_prompts("q", ["a", "b"], item_first=True) == ["aq", "bq"]
    assert score_prompts("q", "a", item_first=False) == ["qa"]
    assert score_prompts([1], [[2], (3, 4)], item_first=False) == [[1, 2], [1, 3, 4]]
    assert score_prompts((1,), [2, 3], item_first=True) == [[2, 3, 1]]


@pytest.mark.parametrize(
    ("query", "items"), [("q", [[1]]), ([1], ["a"]), ("q", ["a", [1]]), ([1], "a"), ([1], [[2], 3])]
)
def test_texts_and_ids_do_not_mix(query: object, items: object) -> None:
    with pytest.raises(ValueError, match="query and items must be texts, or both token ids"):
        score_prompts(query, items, item_first=False)  # type: ignore[arg-type]


def test_no_item_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="items must not be empty"):
        score_prompts("q", [], item_first=False)


def test_scores_are_probabilities() -> None:
    (scores,) = scores_of([answer(math.log(0.5), math.log(0.125))], apply_softmax=False)
    assert scores == pytest.approx([0.5, 0.125])


def test_shares_of_the_labels_add_up_to_one_however_unlikely_they_are() -> None:
    (scores,) = scores_of([answer(-2000.0, -2000.0 - math.log(3))], apply_softmax=True)
    assert scores == pytest.approx([0.75, 0.25])


def test_labels_are_checked() -> None:
    with pytest.raises(ValueError, match="label_token_ids must hold at least one token id"):
        check_labels([], 10)
    with pytest.raises(ValueError, match="0 … 9; got 10"):
        check_labels([1, 10], 10)


def test_shortened_vectors_have_length_one_again() -> None:
    assert shortened([0.6, 0.8], None) == [0.6, 0.8]
    assert shortened([0.3, 0.4, 0.5], 2) == pytest.approx([0.6, 0.8])
    assert shortened([0.0, 1.0], 1) == [0.0]


@pytest.mark.parametrize("dimensions", [0, 3])
def test_dimensions_that_no_vector_has_are_refused(dimensions: int) -> None:
    with pytest.raises(ValueError, match=rf"dimensions must be in 1 … 2, got {dimensions}"):
        shortened([0.6, 0.8], dimensions)
