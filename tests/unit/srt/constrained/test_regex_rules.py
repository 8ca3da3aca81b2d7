"""Patterns mean to every library what they mean to Python, or are refused."""

import random
import re

import pytest

from sglang.srt.constrained.regex_lengths import fitted_pattern
from sglang.srt.constrained.regex_rules import (
    MOST_DEPTH,
    RegexRefused,
    string_pattern,
    whole_pattern,
)

CHARACTERS = 'aAbz019_-. \t\n"\\/é٣\u00a0😀'


def as_python(written: str) -> str:
    """The pattern in Python's flavour, where code points have eight digits."""
    return re.sub(r"\\u\{([0-9a-f]+)\}", lambda match: f"\\U{int(match[1], 16):08x}", written)


def texts(seed: int, count: int = 400) -> list[str]:
    dice = random.Random(seed)
    return [
        "".join(dice.choice(CHARACTERS) for _ in range(dice.randrange(7))) for _ in range(count)
    ]


@pytest.mark.parametrize(
    "pattern",
    [
        "", "a", "a*", "ab?", "a|b|", "(a|b)+1", "(?:a|b){2,3}", "a{2}", "a{1,}", "a+?b", "[ab]_",
        "[^a]", "[a-z]+", "[-a]", "[a-]", r"[\d\-.]+", "(?P<x>a)b", "(?:a(b(z)))*", "é+", r"\.",
        r"\/", r"\x41", r"\u0041", r"[\x41-\x5a]", r"\\", r"\"", "^a$", "^a|b$", "^(a|b)$",
        "(^a|^b)z", "(a$|b$)", "[[a]", "}", "]", "a}",
    ],
)  # fmt: skip
def test_the_language_is_the_same(pattern: str) -> None:
    whole = contains = re.compile(pattern, re.ASCII)
    written, searched = whole_pattern(pattern), string_pattern(pattern, is_plain=False)
    plain = None if pattern in (r"\\", r"\"") else string_pattern(pattern, is_plain=True)
    for text in texts(len(pattern)) + ["a", "b", "aab", "ab", "é", "A", "/", "\\", '"']:
        assert bool(re.fullmatch(as_python(written), text)) == bool(whole.fullmatch(text)), text
        found = bool(contains.search(text)) and not text.endswith("\n")
        if not text.endswith("\n"):  # `$` of Python is also before a last newline
            assert bool(re.fullmatch(as_python(searched), text)) == found, text
        if plain is not None and not text.endswith("\n"):
            is_plain = not re.search(r'["\\\x00-\x1f]', text)
            assert bool(re.fullmatch(as_python(plain), text)) == (found and is_plain), text


@pytest.mark.parametrize(
    "shorthand", [".", *(f"{a}\\{b}{c}" for b in "dDwWsS" for a, c in (("", ""), ("[^", "]")))]
)
def test_shorthands_hold_what_all_flavours_agree_on(shorthand: str) -> None:
    ours = re.compile(as_python(whole_pattern(shorthand)))
    python, ascii_only = re.compile(shorthand), re.compile(shorthand, re.ASCII)
    for code in [*range(0x3000), *range(0xD7F0, 0xD800), *range(0xE000, 0x1FC00)]:
        if ours.fullmatch(chr(code)):
            assert python.fullmatch(chr(code)), hex(code)
            assert ascii_only.fullmatch(chr(code)), hex(code)
    for char in "a1 _-":
        assert bool(ours.fullmatch(char)) == bool(python.fullmatch(char))


def test_pairs_of_surrogates_are_one_character() -> None:
    assert re.fullmatch(as_python(whole_pattern(r"\ud83d\ude00")), "😀")


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(?=a)b", "ahead"),
        ("(?<!a)b", "ahead or behind"),
        (r"(a)\1", "back-references"),
        ("(?P<x>a)(?P=x)", "reference"),
        (r"\p{Lu}", r"\\p"),
        (r"\bx", "word boundaries"),
        (r"\q", r"`\\q`"),
        (r"a\Z", r"`\\Z`"),
        ("(?i)a", "flags"),
        ("[[:alpha:]]", r"`\[:`"),
        ("[a&&b]", "`&&`"),
        ("a^b", "amid"),
        ("a$b", "amid"),
        ("(^a)*", "amid"),
        ("^*", "anchor"),
        ("a++", "repetition of a repetition"),
        ("a{", "missing"),
        ("a{,3}", "begins no"),
        ("a{3,2}", "reversed"),
        ("a{1000000}", "more than"),
        ("*a", "nothing to repeat"),
        ("(a", "unclosed"),
        ("a)", "unopened"),
        ("[a", "unclosed"),
        ("[]a]", "begins with"),
        ("[z-a]", "range"),
        ("\\", "backslash at its end"),
        (r"\ud800", "no character"),
        (r"\xg1", "hexadecimal"),
        ("(" * 300 + ")" * 300, "nested"),
    ],
)
def test_what_flavours_see_differently_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(RegexRefused, match=why):
        whole_pattern(pattern)


def test_anchors_in_some_alternatives_of_a_group() -> None:
    with pytest.raises(RegexRefused, match="each with its anchors"):
        string_pattern("(^a|b)c", is_plain=False)


def test_a_plain_pattern_needs_a_plain_match() -> None:
    with pytest.raises(RegexRefused, match="cannot escape"):
        string_pattern('^"$', is_plain=True)
    assert re.fullmatch(as_python(string_pattern('^("|a)$', is_plain=True)), "a")
    with pytest.raises(RegexRefused, match="a control character"):
        string_pattern(r"^\x01$", is_plain=False)
    assert re.fullmatch(as_python(string_pattern(r"^(\x00|\t)$", is_plain=False)), "\t")


@pytest.mark.parametrize("around", ["(?:a|b{})*y", "(a{})", "(?:{}c|d)+", "x(?:e{}f?){{2}}"])
def test_the_deepest_pattern_is_written_in_all_ways(around: str) -> None:
    def nested(levels: int) -> str:
        pattern = "x"
        for _ in range(levels):
            pattern = around.format(pattern)
        return pattern

    deepest = nested(MOST_DEPTH - 1)
    assert whole_pattern(deepest) and string_pattern(deepest, is_plain=True)
    assert fitted_pattern(f"^{deepest}$", 0, 2**200)
    with pytest.raises(RegexRefused, match=f"more than {MOST_DEPTH} deep"):
        whole_pattern(nested(MOST_DEPTH))


def test_a_long_pattern_takes_linear_time() -> None:
    assert len(whole_pattern("(a|b)" * 20_000)) > 100_000
