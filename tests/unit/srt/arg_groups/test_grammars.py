"""Options of structured output are refused where they cannot be kept."""

import re

import pytest

from sglang.srt.extension_points import GRAMMAR_BACKENDS
from sglang.srt.server_args import (
    GRAMMAR_BACKEND_CHOICES,
    ServerArgs,
    add_grammar_backend_choices,
    prepare_server_args,
)


def parsed(*flags: str) -> ServerArgs:
    return prepare_server_args(["--model-path", "dummy", *flags])


def test_what_is_given_is_kept() -> None:
    args = parsed(
        *("--grammar-max-bytes", "1000", "--grammar-max-depth", "9"),
        *("--grammar-compile-timeout", "1.5", "--grammar-max-compiled-bytes", "2000"),
        *("--grammar-cache-bytes", "0", "--grammar-cache-size", "0"),
        *("--constrained-json-whitespace-pattern", "[ ]?"),
    )
    assert (args.grammar_max_bytes, args.grammar_max_depth) == (1000, 9)
    assert (args.grammar_compile_timeout, args.grammar_max_compiled_bytes) == (1.5, 2000)
    assert (args.grammar_cache_bytes, args.grammar_cache_size) == (0, 0)
    assert args.constrained_json_whitespace_pattern == "[ ]?"


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--grammar-backend", "outlines"), "got 'outlines'.*choose xgrammar or llguidance"),
        (("--grammar-backend", "nope"), "grammar-backend.*none.*got 'nope'"),
        (("--grammar-max-bytes", "0"), "grammar-max-bytes.*>= 1"),
        (("--grammar-max-depth", "257"), "grammar-max-depth.*<= 256"),
        (("--grammar-compile-timeout", "0"), "grammar-compile-timeout.*> 0"),
        (("--grammar-max-compiled-bytes", "0"), "grammar-max-compiled-bytes.*>= 1"),
        (("--grammar-cache-bytes", "-1"), "grammar-cache-bytes.*>= 0"),
        (("--grammar-cache-size", "-1"), "grammar-cache-size.*>= 0"),
        (("--constrained-json-whitespace-pattern", "("), r"whitespace-pattern.*got '\('"),
        (
            (
                *("--constrained-json-whitespace-pattern", " "),
                "--constrained-json-disable-any-whitespace",
            ),
            "whitespace-pattern.*disable-any-whitespace exclude",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused(
    flags: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((SystemExit, ValueError)) as caught:
        parsed(*flags)
    text = capsys.readouterr().err + str(caught.value)
    assert re.search(reason, text, re.DOTALL), text


def test_a_name_that_is_registered_counts_whatever_other_engines_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(GRAMMAR_BACKENDS, "outlines", lambda *arguments: None)
    assert parsed("--grammar-backend", "outlines").grammar_backend == "outlines"


def test_names_can_be_announced_before_they_are_registered() -> None:
    add_grammar_backend_choices(["later"])
    try:
        assert parsed("--grammar-backend", "later").grammar_backend == "later"
    finally:
        GRAMMAR_BACKEND_CHOICES.remove("later")
