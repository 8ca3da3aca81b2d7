"""Texts of constraints are measured in linear time, without recursion, whatever they hold."""

import random
import re
import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from sglang.srt.constrained.limits import GrammarLimits, nesting, why_no_json, why_too_large
from sglang.srt.server_args import ServerArgs

LIMITS = GrammarLimits(max_text_bytes=1000, max_depth=3)
BIG = 256 << 10


def test_limits_are_those_of_the_options_and_defaults_fill_what_is_missing() -> None:
    given = ServerArgs(
        model_path="dummy", grammar_max_bytes=1, grammar_max_depth=2, grammar_compile_timeout=3.5,
        grammar_max_compiled_bytes=4, grammar_cache_bytes=5, grammar_cache_size=6,
    )  # fmt: skip
    assert GrammarLimits.of(given) == GrammarLimits(1, 2, 3.5, 4, 5, 6)
    assert GrammarLimits.of(SimpleNamespace(grammar_backend="none")) == GrammarLimits()
    assert GrammarLimits.of(Mock(grammar_max_depth=7)) == GrammarLimits(max_depth=7)


@pytest.mark.parametrize(
    ("kind", "text", "depth"),
    [
        ("json", "{}", 1),
        ("json", "3", 0),
        ("json", '{"a": [{"b": [1, 2]}, []]}', 4),
        ("json", r'{"[[[": "\"[[[", "b": "\\", "c": "\\\"[["}', 1),
        ("structural_tag", '{"format": {"tags": [{}]}}', 4),
        ("regex", "(a(b)c)(d)", 2),
        ("regex", r"\(\(\([(((]\\(a)x{2}]]", 1),
        ("regex", "(](](](])", 4),
        ("ebnf", 'root ::= ("(((" [(((] (x)) # (((\nx ::= "\\"(" ("b")', 2),
        ("ebnf", "root ::= (((", 3),
    ],
)
def test_nesting(kind: str, text: str, depth: int) -> None:
    assert nesting(kind, text) == depth


def test_nesting_of_json_is_what_a_reader_finds() -> None:
    rng = random.Random(7)

    def value(depth: int) -> tuple[object, int]:
        kind = rng.choice("ilds") if depth else "s"
        if kind == "i":
            return rng.randrange(9), 0
        if kind == "s":
            return "".join(rng.choice('[]{}"\\x,') for _ in range(rng.randrange(6))), 0
        parts = [value(depth - 1) for _ in range(rng.randrange(4))]
        deepest = 1 + max((part[1] for part in parts), default=0)
        values = [part[0] for part in parts]
        keys = [rng.choice(['{"', "]\\", "a"]) + str(i) for i in range(len(values))]
        return (values if kind == "l" else dict(zip(keys, values, strict=True))), deepest

    import json

    for _ in range(500):
        made, depth = value(5)
        assert nesting("json", json.dumps(made)) == depth


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x" * 1000, None),
        ("x" * 1001, r"regex has 1001 bytes or more; at most 1000 .*--grammar-max-bytes"),
        ("é" * 501, r"regex has 1002 bytes"),
        ("(((x)))", None),
        ("((((x))))", r"regex is nested 4 levels deep; at most 3 .*--grammar-max-depth"),
    ],
)
def test_what_is_too_large_is_told_with_figure_and_flag(text: str, message: str | None) -> None:
    found = why_too_large("regex", "regex", text, LIMITS)
    assert found is None if message is None else re.match(message, found or "")


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("json", '{"type": "object"}', None),
        ("json", "true", None),
        ("json", " false\n", None),
        ("structural_tag", "{}", None),
        ("regex", "[", None),
        ("ebnf", "{", None),
        ("json", "", "f is not JSON: Expecting value"),
        ("json", "{'a': 1}", "f is not JSON"),
        ("json", '{"a": 1}}', "f is not JSON: Extra data"),
        ("json", '{"a": NaN}', "f is not JSON: NaN is no number"),
        ("json", "[]", "f must be an object, true or false in JSON, got an array"),
        ("json", "null", "f must be an object, true or false in JSON, got null"),
        ("json", '"x"', "f must be .* got a text or a number"),
        ("structural_tag", "true", "f must be an object in JSON, got a boolean"),
    ],
)
def test_what_should_be_json_is(kind: str, text: str, message: str | None) -> None:
    found = why_no_json("f", kind, text)
    assert found is None if message is None else re.match(message, found or "")


@pytest.mark.parametrize(
    "text",
    [
        "[" * BIG, "[]" * (BIG // 2), '"' * (BIG - 1), '"\\' * (BIG // 2), "\\" * (BIG - 1),
        '{"a":' * (BIG // 5), "(" * BIG, "[^" * (BIG // 2), "()" * (BIG // 2), "#" * BIG,
        '"[' * (BIG // 2), "9" * BIG, "(](" * (BIG // 3),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["json", "regex", "ebnf", "structural_tag", "other"])
def test_hostile_texts_cost_little(kind: str, text: str) -> None:
    started = time.process_time()
    why_too_large("f", kind, text, GrammarLimits())
    if nesting(kind, text) < 200:
        why_no_json("f", kind, text)
    assert time.process_time() - started < 1.0  # a quadratic search would take minutes
