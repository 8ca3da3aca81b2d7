"""What one constraint, and all that are kept, may cost; checked before anything is compiled."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NoReturn

from sglang.srt.arg_groups.grammars import GrammarArgs

JSON_KINDS = ("json", "structural_tag")
# What may hold brackets that open nothing, once escapes are dropped. No alternative can fail after
# its first character, so the search takes linear time whatever the text is.
_NO_GROUPS = {
    "regex": re.compile(r"\[[^\]]*(?:\]|\Z)"),
    "ebnf": re.compile(r'"[^"]*(?:"|\Z)|\[[^\]]*(?:\]|\Z)|#[^\n]*'),
}
_ESCAPES = re.compile(r"\\.", re.DOTALL)


@dataclass(frozen=True)
class GrammarLimits:
    """The limits of one engine; `--grammar-…` sets all but the last."""

    max_text_bytes: int = GrammarArgs.grammar_max_bytes
    max_depth: int = GrammarArgs.grammar_max_depth
    compile_seconds: float = GrammarArgs.grammar_compile_timeout
    compiled_bytes: int = GrammarArgs.grammar_max_compiled_bytes
    cache_bytes: int = GrammarArgs.grammar_cache_bytes
    cache_entries: int = GrammarArgs.grammar_cache_size
    num_compiling: int = 64  # constraints at once; more are refused until one is done

    @classmethod
    def of(cls, server_args: Any) -> "GrammarLimits":
        """The limits that these options set; what they lack, or is no number, has its default."""
        found = {field: getattr(server_args, name, None) for field, name in _OPTION_OF.items()}
        given: dict[str, Any] = {name: value for name, value in found.items() if _is_number(value)}
        return cls(**given)


_OPTION_OF = {
    "max_text_bytes": "grammar_max_bytes",
    "max_depth": "grammar_max_depth",
    "compile_seconds": "grammar_compile_timeout",
    "compiled_bytes": "grammar_max_compiled_bytes",
    "cache_bytes": "grammar_cache_bytes",
    "cache_entries": "grammar_cache_size",
}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def why_too_large(field: str, kind: str, text: str, limits: GrammarLimits) -> str | None:
    """The sentence for a constraint that is too long or too deep; None: it is neither.

    `field` is what the request calls it, `kind` that of its key.
    """
    most = limits.max_text_bytes
    length = len(text) if len(text) > most else len(text.encode(errors="surrogatepass"))
    if length > most:
        return (
            f"{field} has {length} bytes or more; at most {most} are allowed "
            "(--grammar-max-bytes). Send a shorter one."
        )
    depth = nesting(kind, text)
    if depth > limits.max_depth:
        return (
            f"{field} is nested {depth} levels deep; at most {limits.max_depth} are allowed "
            "(--grammar-max-depth). Send a flatter one."
        )
    return None


def nesting(kind: str, text: str) -> int:
    """Levels of arrays and objects in JSON, of groups in other texts; in linear time."""
    if kind in JSON_KINDS:
        plain = text.replace("\\\\", "").replace('\\"', "")
        return _depth("".join(plain.split('"')[::2]), "[{", "]}")
    without_escapes = _ESCAPES.sub("", text)
    no_groups = _NO_GROUPS.get(kind)
    outside = no_groups.sub("", without_escapes) if no_groups else without_escapes
    return _depth(outside, "(", ")")


def _depth(text: str, opening: str, closing: str) -> int:
    steps = {ord(char): 1 for char in opening} | {ord(char): -1 for char in closing}
    others = bytes(byte for byte in range(256) if byte not in steps)
    brackets = text.encode(errors="surrogatepass").translate(None, others)
    return max(accumulate(steps[byte] for byte in brackets), default=0)


def why_no_json(field: str, kind: str, text: str) -> str | None:
    """The sentence for a constraint that should be JSON and is not; None: it is what it should be.

    Only for texts whose nesting is limited.
    """
    if kind not in JSON_KINDS:
        return None
    try:
        value = json.loads(text, parse_int=str, parse_float=str, parse_constant=_no_constant)
    except ValueError as error:
        return f"{field} is not JSON: {error}"
    if isinstance(value, dict) or (kind == "json" and isinstance(value, bool)):
        return None
    allowed = "an object, true or false" if kind == "json" else "an object"
    return f"{field} must be {allowed} in JSON, got {_name_of(value)}"


def too_slow(seconds: float) -> str:
    """What its requests are told of a compilation that was ended."""
    return f"not compiled within {seconds:g} s (--grammar-compile-timeout); simplify it"


def too_big(given: int, allowed: int) -> str:
    """The same of one that is too large when it is compiled."""
    return (
        f"compiled it may take {allowed} bytes (--grammar-max-compiled-bytes) and needs {given}; "
        "simplify it"
    )


def too_big_while_compiled(allowed: int) -> str:
    """The same of one whose compilation ran out of memory."""
    return (
        f"compiling it needs more than {allowed} bytes, which grow with "
        "--grammar-max-compiled-bytes; simplify it"
    )


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _name_of(value: object) -> str:
    names: Iterable[tuple[type, str]] = ((list, "an array"), (bool, "a boolean"))
    found = next((name for kind, name in names if isinstance(value, kind)), None)
    return found or ("null" if value is None else "a text or a number")
