"""Rules for the bounds of histograms."""

import pytest

from sglang.srt.observability.buckets import SECONDS, TOKEN_COUNTS, seconds_buckets, token_buckets


def test_rules_give_their_bounds() -> None:
    assert seconds_buckets(None, "--x") == SECONDS
    assert seconds_buckets(["0.1", 1], "--x") == (0.1, 1.0)
    assert token_buckets(None, "--x") == token_buckets(["default"], "--x") == TOKEN_COUNTS
    assert token_buckets(["custom", "10", "50"], "--x") == (10.0, 50.0)
    two_sided = (984.0, 992.0, 996.0, 998.0, 1000.0, 1002.0, 1004.0, 1008.0, 1016.0)
    assert token_buckets(["tse", "1000", "2", "8"], "--x") == two_sided


def test_the_two_sided_rule_leaves_out_what_is_not_above_zero() -> None:
    assert token_buckets(["tse", "5", "2", "8"], "--x") == (1.0, 3.0, 5.0, 7.0, 9.0, 13.0, 21.0)


@pytest.mark.parametrize("values", [[], ["0", "1"], ["2", "1"], ["1", "1"], ["x"], ["inf"]])
def test_wrong_seconds_are_refused(values: list[str]) -> None:
    with pytest.raises(ValueError, match="--x"):
        seconds_buckets(values, "--x")


@pytest.mark.parametrize(
    "rule",
    [
        [], ["nope"], ["default", "1"], ["custom"], ["custom", "2", "1"], ["tse", "1", "2"],
        ["tse", "10", "1", "4"], ["tse", "10", "2", "1"], ["tse", "10", "2", "9999"],
        ["tse", "10", "1e300", "8"],
    ],
)  # fmt: skip
def test_wrong_rules_are_refused(rule: list[str]) -> None:
    with pytest.raises(ValueError, match="--x"):
        token_buckets(rule, "--x")
