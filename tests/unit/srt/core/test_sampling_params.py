"""Sampling parameters have one canonical form."""

import pytest

from sglang.srt.core.sampling_params import SamplingParams


@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1e-6, 9.9e-6, 1e-5, 1e-3, 1.0])
def test_what_is_greedy_stays_greedy_and_nothing_else_becomes_so(temperature: float) -> None:
    params = SamplingParams(temperature=temperature)
    assert params.is_greedy == (temperature < 1e-5)
    assert params.normalized().is_greedy == params.is_greedy
    assert (params.normalized().top_k == 1) == params.is_greedy


def test_top_k_of_one_is_greedy_at_any_temperature() -> None:
    assert SamplingParams(temperature=2.0, top_k=1).is_greedy


def test_two_constraints_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="regex and ebnf"):
        SamplingParams(regex="a", ebnf="b").check(10)
