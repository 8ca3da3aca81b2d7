"""Grammars by the library llguidance, which computes masks by derivatives while it parses."""

import dataclasses
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sglang.srt.constrained.base_grammar_backend import GrammarStats
from sglang.srt.constrained.constraint_text import NO_TEXT, prepared_text
from sglang.srt.constrained.json_schema_rules import GUIDANCE_RULES
from sglang.srt.constrained.limits import GrammarLimits
from sglang.srt.constrained.probed_backend import ProbedBackend, in_small_stack, payload_of
from sglang.srt.constrained.structural_tags import LarkWriter, with_options
from sglang.srt.constrained.token_mask import BitmaskGrammar
from sglang.srt.constrained.vocabulary import TokenVocabulary
from sglang.srt.core.messages import ConstraintTooComplex

if TYPE_CHECKING:
    import torch
    from llguidance import LLMatcher, LLTokenizer

WHITE_SPACE = r"[\x20\x0A\x0D\x09]{0,8}"  # between two tokens of JSON; bounded, so it ends
HEAD = '%llguidance {"no_forcing": true}\n'  # a mask holds all tokens that may follow
BYTES_OF_A_CHARACTER = 64  # that a parser takes, roughly, for each of its text
_PLACE = re.compile(r"^(?:at \d+\(\d+\): )?(?:failed to compile JSON schema: )?")
_LIMIT = re.compile(r"too (?:many|big|large|complex)|max is \d+|\blimit\b")  # of the library's own
BYTES_OF_A_STATE = 2048  # of the library's lexer


class GuidanceGrammar(BitmaskGrammar):
    """A matcher and all that its lexer has built."""

    _matcher: "LLMatcher"

    def _accept(self, token: int) -> None:
        if not self._matcher.consume_token(token):
            raise self._failed(f"token {token}: ")

    def _rollback(self, k: int) -> None:
        if not self._matcher.rollback(k):
            raise ValueError(f"{k} tokens back: {_reason(self._matcher)}")

    def _may_end(self) -> bool:
        return bool(self._matcher.is_accepting())

    def _is_exhausted(self) -> bool:
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    def _forked(self, stats: GrammarStats) -> "GuidanceGrammar":
        matcher = self._matcher.deep_copy()
        return GuidanceGrammar(matcher, self._rows, self.memory_bytes, stats)

    def _fill(self, row: "torch.Tensor") -> None:
        if self._is_exhausted():
            row.copy_(self._rows.ends)
            return
        self._matcher.unsafe_compute_mask_ptr(row.data_ptr(), row.numel() * row.element_size())
        if self._matcher.is_error():
            raise self._failed()

    def _failed(self, what: str = "") -> ValueError:
        reason = _reason(self._matcher)
        return ConstraintTooComplex(reason) if _LIMIT.search(reason) else ValueError(what + reason)


class GuidanceBackend(ProbedBackend):
    """Builds a parser per constraint, and each answer walks a copy of it."""

    library = "llguidance"
    rules = GUIDANCE_RULES

    def __init__(
        self, vocabulary: TokenVocabulary, limits: GrammarLimits, json_options: dict[str, Any]
    ) -> None:
        super().__init__(vocabulary, limits, json_options)
        self._tokenizer = _tokenizer(vocabulary)

    def _build(self, text: str, grammar_stats: GrammarStats) -> GuidanceGrammar:
        return GuidanceGrammar(
            _matcher(self._tokenizer, text, self.limits.compiled_bytes),
            self._rows,
            len(text) * BYTES_OF_A_CHARACTER,
            grammar_stats,
        )


def make_compiler(payload: bytes) -> Callable[[str, str], bytes]:
    """Runs once in each compiling process."""
    known = payload_of(payload)
    tokenizer = _tokenizer(known.vocabulary)

    def compile_text(kind: str, text: str) -> bytes:
        written = grammar_text(kind, text, known.settings)
        matcher = _matcher(tokenizer, written, known.compiled_bytes)
        is_empty = not any(matcher.compute_bitmask())
        if matcher.is_error() or is_empty:
            raise ValueError(_reason(matcher) if matcher.is_error() else NO_TEXT)
        return written.encode()

    return in_small_stack(compile_text)


def grammar_text(kind: str, text: str, json_options: dict[str, Any]) -> str:
    """The constraint in the library's dialect of Lark."""
    from llguidance.gbnf_to_lark import gbnf_to_lark

    text = prepared_text(kind, text, GUIDANCE_RULES)
    if kind == "json":
        schema = with_options(json.loads(text), json_options)
        return f"{HEAD}start: %json {json.dumps(schema)}\n"
    if kind == "regex":
        return f"{HEAD}start: /{text}/\n" if text else f'{HEAD}start: ""\n'
    if kind == "structural_tag":
        return HEAD + LarkWriter(json_options).write(json.loads(text))
    try:
        return HEAD + gbnf_to_lark(text).removeprefix("%llguidance {}")
    except Exception as error:  # noqa: BLE001  # of no class of its own
        raise ValueError(f"the grammar cannot be read: {error}") from None


def create_guidance_backend(
    server_args: Any, tokenizer: Any, vocab_size: int, eos_token_ids: Any
) -> GuidanceBackend:
    return GuidanceBackend(
        TokenVocabulary.of(tokenizer, vocab_size, eos_token_ids),
        GrammarLimits.of(server_args),
        json_options(server_args),
    )


def json_options(server_args: Any) -> dict[str, Any]:
    """Of the library's compiler of JSON schemas.

    A string has one spelling, or a name could come twice, once with a `\\u…` in it.
    """
    options: dict[str, Any] = {"json_allowed_escapes": '"\\bfnrt'}
    if getattr(server_args, "constrained_json_disable_any_whitespace", False) is True:
        return {**options, "whitespace_flexible": False}
    pattern = getattr(server_args, "constrained_json_whitespace_pattern", None)
    return {**options, "whitespace_pattern": pattern if isinstance(pattern, str) else WHITE_SPACE}


@dataclasses.dataclass
class _Wrapped:
    """A vocabulary in the shape that the library asks for."""

    tokens: list[bytes]
    special_token_ids: list[int]
    eos_token_id: int
    bos_token_id: int | None = None
    is_tokenizer_wrapper: bool = True

    def __call__(self, text: str | bytes) -> list[int]:
        raise NotImplementedError("asked for forced text only, and no grammar here forces any")


def _tokenizer(vocabulary: TokenVocabulary) -> "LLTokenizer":
    from llguidance import LLTokenizer

    wrapped = _Wrapped(
        list(vocabulary.tokens),
        [id for id, token in enumerate(vocabulary.tokens) if not token],
        vocabulary.end_ids[0],
    )
    return LLTokenizer(
        wrapped,  # type: ignore[arg-type]
        n_vocab=vocabulary.vocab_size,
        eos_token=list(vocabulary.end_ids),
    )


def _matcher(tokenizer: "LLTokenizer", text: str, compiled_bytes: int) -> "LLMatcher":
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(
        max_lexer_states=max(compiled_bytes // BYTES_OF_A_STATE, 1000), verbose_errors=False
    )
    matcher = LLMatcher(tokenizer, text, log_level=0, limits=limits)
    if matcher.is_error():
        raise ValueError(_reason(matcher))
    return matcher


def _reason(matcher: "LLMatcher") -> str:
    """What the library says, without the grammar that it quotes."""
    first = matcher.get_error().strip().partition("\n")[0]
    if first.startswith("NoExtension"):
        return NO_TEXT
    return _PLACE.sub("", first).removesuffix("<non-verbose/>").strip() or "the grammar failed"
