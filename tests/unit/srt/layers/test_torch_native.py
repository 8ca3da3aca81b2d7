"""Requests of very different lengths decode in groups without changing each other's answers."""

import pytest

from sglang.srt.layers.attention.slot_plans import similar_lengths


@pytest.mark.parametrize(
    ("lengths", "groups"),
    [
        ([50, 50, 50], [[0, 1, 2]]),
        ([10, 60, 20], [[1, 2, 0]]),
        ([4000, 20, 30, 3900], [[0, 3], [2, 1]]),
        ([7], [[0]]),
    ],
)
def test_groups_are_cut_where_padding_would_cost_more(
    lengths: list[int], groups: list[list[int]]
) -> None:
    assert similar_lengths(lengths) == groups


def test_every_row_is_in_one_group() -> None:
    lengths = [2**exponent for exponent in range(14)] * 3
    rows = [row for group in similar_lengths(lengths) for row in group]
    assert sorted(rows) == list(range(len(lengths)))
