"""Structured output: what compiles the constraints of requests, and what a constraint may cost."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated as A

from sglang.srt.arg_groups.declaration import Bound, Choices, Group
from sglang.srt.arg_groups.name_list import NameList
from sglang.srt.extension_points import GRAMMAR_BACKENDS

GROUP = Group("structured output")
BYTES = Bound(ge=1)
DEEPEST = 256  # levels; readers of JSON that call themselves are safe below that
GRAMMAR_BACKEND_CHOICES = NameList(GRAMMAR_BACKENDS)
ABSENT_BACKENDS = {
    "outlines": "it is not part of this engine; choose xgrammar or llguidance, which both honour "
    "JSON schemas, regexes and grammars"
}


def add_grammar_backend_choices(choices: Iterable[str]) -> None:
    """Names that only the process with the model will register."""
    GRAMMAR_BACKEND_CHOICES.extend(choices)


@dataclass
class GrammarArgs:
    """Backend, limits, white space."""

    grammar_backend: A[
        str,
        GROUP,
        Choices(lambda: GRAMMAR_BACKEND_CHOICES, ABSENT_BACKENDS),
        "What compiles the constraints of requests: a built-in backend or a plugin's; none: a "
        "request with one is refused.",
    ] = "llguidance"
    grammar_max_bytes: A[int, GROUP, BYTES, "Longest text of one constraint, in bytes."] = 256 << 10
    grammar_max_depth: A[
        int,
        GROUP,
        Bound(ge=1, le=DEEPEST),
        "Deepest nesting of a constraint: of arrays and objects in JSON, else of groups.",
    ] = 64
    grammar_compile_timeout: A[
        float,
        GROUP,
        Bound(gt=0, le=3600),
        "Seconds after which the compilation of a constraint is ended; its requests get a 400.",
    ] = 20.0
    grammar_max_compiled_bytes: A[
        int, GROUP, BYTES, "Memory that one constraint may take, in bytes, compiled or while it is."
    ] = 64 << 20
    grammar_cache_bytes: A[
        int, GROUP, Bound(ge=0), "Memory of all compiled constraints that are kept, in bytes."
    ] = 256 << 20
    grammar_cache_size: A[int, GROUP, Bound(ge=0), "Most compiled constraints that are kept."] = (
        1024
    )
    constrained_json_whitespace_pattern: A[
        str | None,
        GROUP,
        "Regex of the white space between the parts of constrained JSON; llguidance only.",
    ] = None
    constrained_json_disable_any_whitespace: A[
        bool, GROUP, "Let constrained JSON have no white space outside of its texts."
    ] = False


def check_grammars(args: GrammarArgs) -> None:
    """ValueError for a pattern that is none, or has nothing to say."""
    pattern = args.constrained_json_whitespace_pattern
    if pattern is None:
        return
    if args.constrained_json_disable_any_whitespace:
        raise ValueError(
            "--constrained-json-whitespace-pattern and --constrained-json-disable-any-whitespace "
            "exclude each other"
        )
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"--constrained-json-whitespace-pattern must be a regex, got {pattern!r}: {error}"
        ) from None
