"""A fitted pattern matches what the pattern does, within the lengths, or less; never more."""

import random
import re

import pytest

from sglang.srt.constrained.regex_lengths import fitted_pattern
from tests.unit.srt.constrained.test_regex_rules import as_python

PATTERNS = [
    "^[ab]*$", "^a{2,5}$", "ab", "^ab*$", "^(a|bb)+$", "^a*b*a*$", "^(ab?)*$", "^(a*b)*$",
    "a|^bb+$", "^a?b?a?$", "^(aab|b){2,3}$", "^a*(b|aa)$", "^((a|b)a)*b+$",
]  # fmt: skip
BOUNDS = [(0, 0), (0, 3), (2, 3), (3, 3), (4, None), (1, 6), (5, 8), (0, None)]


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_it_never_matches_more(pattern: str, bounds: tuple[int, int | None]) -> None:
    least, most = bounds
    fitted = fitted_pattern(pattern, least, most)
    dice = random.Random(3)
    texts = ["".join(dice.choices("ab", k=dice.randrange(10))) for _ in range(1500)]
    right = {
        text
        for text in texts
        if re.search(pattern, text) and least <= len(text) <= (99 if most is None else most)
    }
    matched = {text for text in texts if fitted and re.fullmatch(as_python(fitted), text)}
    assert matched <= right


@pytest.mark.parametrize(
    ("pattern", "bounds", "right", "wrong"),
    [
        ("^[a-z]+$", (2, 3), ["ab", "abc"], ["a", "abcd"]),
        (r"\w@\w", (0, 9), ["a@b", "xa@bx"], ["a@", "xxxxa@bxxxxx"]),
        ("^ab*$", (3, 4), ["abb", "abbb"], ["ab", "abbbb"]),
    ],
)
def test_simple_patterns_match_all_that_they_may(
    pattern: str, bounds: tuple[int, int], right: list[str], wrong: list[str]
) -> None:
    fitted = as_python(fitted_pattern(pattern, *bounds) or "$^")
    assert [text for text in right + wrong if re.fullmatch(fitted, text)] == right
