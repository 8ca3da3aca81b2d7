"""Sampling parameters have one canonical form."""

from typing import Any

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


VOCAB = 100
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("field", "allowed", "refused"),
    [
        ("max_new_tokens", [0, 1, 10_000, None], [-1]),
        ("stop", [[], ["x"] * 32], [["x"] * 33, [""]]),
        ("stop_regex", [["é" * 128], ["x"] * 32], [["é" * 129], ["x" * 257], ["x"] * 33, [""]]),
        ("stop_token_ids", [[0, 99], list(range(100)) * 5], [[100], [-1]]),
        ("temperature", [0.0, 1e-30, 100.0], [-0.1, NAN, INF]),
        ("top_p", [1e-9, 1.0], [0.0, 1.1, -1.0, NAN]),
        ("top_k", [-1, 1, 1 << 40], [0, -2]),
        ("min_p", [0.0, 1.0], [-0.1, 1.1, NAN]),
        ("frequency_penalty", [-2.0, 2.0], [-2.1, 2.1, NAN]),
        ("presence_penalty", [-2.0, 2.0], [-2.1, 2.1, NAN]),
        ("repetition_penalty", [1e-9, 2.0], [0.0, -1.0, 2.1, NAN]),
        ("n", [1, 128], [0, -1]),
        ("logit_bias", [{0: -100.0, 99: 1e30}], [{100: 1.0}, {-1: 1.0}, {3: NAN}, {3: INF}]),
        ("sampling_seed", [-(1 << 63), (1 << 63) - 1, 0, None], [1 << 63, -(1 << 63) - 1]),
        ("stream_interval", [1, 500, None], [0, -1]),
    ],
)
def test_each_parameter_has_its_range(field: str, allowed: list[Any], refused: list[Any]) -> None:
    for value in allowed:
        SamplingParams(**{field: value}).check(VOCAB)
    for value in refused:
        with pytest.raises(ValueError, match=f"^{field} must be "):
            SamplingParams(**{field: value}).check(VOCAB)


def test_minimum_lies_between_zero_and_the_maximum() -> None:
    SamplingParams(max_new_tokens=5, min_new_tokens=5).check(VOCAB)
    SamplingParams(max_new_tokens=None, min_new_tokens=500).check(VOCAB)
    for minimum, maximum in ((6, 5), (-1, 5), (-1, None)):
        with pytest.raises(ValueError, match="^min_new_tokens must be"):
            SamplingParams(max_new_tokens=maximum, min_new_tokens=minimum).check(VOCAB)


def test_empty_constraint_counts_as_none() -> None:
    params = SamplingParams(regex="", json_schema="", ebnf="x")
    params.check(VOCAB)
    assert params.constraints == ["ebnf"]


def test_defaults_are_the_documented_ones() -> None:
    assert SamplingParams() == SamplingParams(
        max_new_tokens=128, min_new_tokens=0, temperature=1.0, top_p=1.0, top_k=-1, min_p=0.0,
        frequency_penalty=0.0, presence_penalty=0.0, repetition_penalty=1.0, n=1,
        ignore_eos=False, skip_special_tokens=True, spaces_between_special_tokens=True,
        no_stop_trim=False,
    )  # fmt: skip
    assert SamplingParams().normalized().top_k == 1 << 30
