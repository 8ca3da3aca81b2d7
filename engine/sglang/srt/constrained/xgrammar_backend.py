"""Grammars by the library xgrammar, compiled in a process that can be ended."""

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sglang.srt.constrained.base_grammar_backend import GrammarStats
from sglang.srt.constrained.constraint_text import NO_TEXT, prepared_text
from sglang.srt.constrained.limits import GrammarLimits, too_big
from sglang.srt.constrained.probed_backend import ProbedBackend, in_small_stack, payload_of
from sglang.srt.constrained.structural_tags import Format
from sglang.srt.constrained.token_mask import BITS, BitmaskGrammar, TokenRows, row_of
from sglang.srt.constrained.vocabulary import TokenVocabulary
from sglang.srt.constrained.whole_characters import NO_LEAD, WholeCharacters
from sglang.srt.constrained.xgrammar_schema import XGRAMMAR_RULES

if TYPE_CHECKING:
    import torch
    from xgrammar import CompiledGrammar, GrammarMatcher, TokenizerInfo

MOST_WHITE_SPACE = 8  # characters between two tokens of JSON
# A string has one spelling, or a name in JSON could come twice, once with a `\\u…` in it.
ANY_ESCAPE = r'(([\"\\/bfnrt]) | ("u" [A-Fa-f0-9] [A-Fa-f0-9] [A-Fa-f0-9] [A-Fa-f0-9]))'
ONE_ESCAPE = r"(([\"\\bfnrt]))"
# A string may hold neither control characters nor halves of a pair; the library lets them through.
CHARACTERS = r"[ !#-\[\]-\uD7FF\uE000-\U0010FFFF]"
TOO_MANY = (r"[^\"\\\r\n]", r"[^\0-\x1f\"\\\r\n]")
_NUL = re.compile(
    r"(?:\x00|\\(?:0|x00|u0000|U0{8}|u\{0+\}))(?!-)"
)  # alone, not as the first of a range
_WHITE_SPACE = re.compile(r"whitespace(?:_\d+)?\{0, 8\} ?")
_PLACE = re.compile(r"^\[[\d:]+\] \S+:\d+: ")


class XGrammarGrammar(BitmaskGrammar):
    """A matcher over a compiled grammar, which is shared and never changes.

    The library's classes of characters hold byte sequences that are no character.
    """

    _matcher: "GrammarMatcher"

    def __init__(
        self,
        matcher: "GrammarMatcher",
        rows: TokenRows,
        memory_bytes: int,
        grammar_stats: GrammarStats,
        characters: WholeCharacters,
    ) -> None:
        super().__init__(matcher, rows, memory_bytes, grammar_stats)
        self._characters = characters
        self._last_bytes = bytearray()  # of each token

    def _accept(self, token: int) -> None:
        if not self._is_character(token) or not self._matcher.accept_token(token):
            raise ValueError(f"token {token} is not what the grammar allows here")
        self._last_bytes.append(self._characters.last_byte(token))

    def _is_character(self, token: int) -> bool:
        word = int(self._allowed()[token // BITS])
        return bool(word >> token % BITS & 1)

    def _allowed(self) -> "torch.Tensor":
        return self._characters.row(self._last_bytes[-1] if self._last_bytes else NO_LEAD)

    def _rollback(self, k: int) -> None:
        self._matcher.rollback(k)
        del self._last_bytes[len(self._last_bytes) - k :]

    def _may_end(self) -> bool:
        return bool(self._matcher.is_completed())

    def _is_exhausted(self) -> bool:
        if not self._matcher.is_completed():
            return False
        row = self._rows.ends.clone()
        self._fill(row)
        return not bool((row & ~self._rows.ends).any())

    def _forked(self, stats: GrammarStats) -> "XGrammarGrammar":
        matcher = self._matcher.fork()
        forked = XGrammarGrammar(matcher, self._rows, self.memory_bytes, stats, self._characters)
        forked._last_bytes[:] = self._last_bytes
        return forked

    def _fill(self, row: "torch.Tensor") -> None:
        if self._matcher.fill_next_token_bitmask(row):
            row &= self._allowed()
        else:
            row.copy_(self._allowed())


class XGrammarGrammarBackend(ProbedBackend):
    """Compiles twice, which takes less time and memory than reading what the process could send."""

    library = "xgrammar"
    rules = XGRAMMAR_RULES

    def __init__(
        self, vocabulary: TokenVocabulary, limits: GrammarLimits, *, is_compact: bool = False
    ) -> None:
        super().__init__(vocabulary, limits, {"is_compact": is_compact})
        self._tokenizer_info = _tokenizer_info(vocabulary)
        self._characters = WholeCharacters(vocabulary)

    def _build(self, text: str, grammar_stats: GrammarStats) -> XGrammarGrammar:
        import xgrammar

        compiled = _compiled(self._tokenizer_info, text)
        return XGrammarGrammar(
            xgrammar.GrammarMatcher(compiled),
            self._rows,
            int(compiled.memory_size_bytes),
            grammar_stats,
            self._characters,
        )


def make_compiler(payload: bytes) -> Callable[[str, str], bytes]:
    """Runs once in each compiling process."""
    import xgrammar

    known = payload_of(payload)
    tokenizer_info = _tokenizer_info(known.vocabulary)
    is_compact = bool(known.settings["is_compact"])

    def compile_text(kind: str, text: str) -> bytes:
        try:
            written = grammar_text(kind, text, is_compact)
            compiled = _compiled(tokenizer_info, written)
        except RuntimeError as error:
            if "bad_alloc" in str(error):
                raise MemoryError from None
            raise ValueError(_reason(error)) from None
        size = int(compiled.memory_size_bytes)
        if size > known.compiled_bytes:
            raise ValueError(too_big(size, known.compiled_bytes))
        row = row_of((), known.vocabulary.vocab_size)
        xgrammar.GrammarMatcher(compiled).fill_next_token_bitmask(row)
        if not row.any():
            raise ValueError(NO_TEXT)
        return written.encode()

    return in_small_stack(compile_text)


def _compiled(tokenizer_info: "TokenizerInfo", text: str) -> "CompiledGrammar":
    import xgrammar

    compiler = xgrammar.GrammarCompiler(tokenizer_info, max_threads=1, cache_enabled=False)
    return compiler.compile_grammar(text)


def grammar_text(kind: str, text: str, is_compact: bool) -> str:
    """The constraint as a grammar in which each string has one spelling, and white space ends."""
    from xgrammar import Grammar

    text = prepared_text(kind, text, XGRAMMAR_RULES)
    if kind in ("regex", "ebnf"):
        _check_no_nul(text)
    if kind == "json":
        grammar = Grammar.from_json_schema(
            text,
            any_whitespace=not is_compact,
            separators=(",", ":") if is_compact else None,
            strict_mode=False,
            max_whitespace_cnt=None if is_compact else MOST_WHITE_SPACE,
        )
    elif kind == "structural_tag":
        tag = {"type": "structural_tag", "format": _with_bounded_space(json.loads(text))}
        grammar = Grammar.from_structural_tag(json.dumps(tag))
    else:
        return str(Grammar.from_regex(text) if kind == "regex" else Grammar.from_ebnf(text))
    written = str(grammar).replace(ANY_ESCAPE, ONE_ESCAPE)
    for characters in TOO_MANY:
        written = written.replace(characters, CHARACTERS)
    if is_compact and kind == "structural_tag":
        written = _WHITE_SPACE.sub("", written)
    return written


def _with_bounded_space(node: Format) -> Format:
    """The format, where white space in JSON has an end."""
    if node["type"] == "json_schema":
        return {**node, "max_whitespace_cnt": MOST_WHITE_SPACE}
    _check_no_nul(node.get("pattern", ""))
    for field in ("value", "begin", "end", "separator"):
        _check_no_nul(node.get(field, "").replace("\\", ""))  # there it begins no escape
    bounded = dict(node)
    for field in ("elements", "tags"):
        if field in node:
            bounded[field] = [_with_bounded_space(each) for each in node[field]]
    if "content" in node:
        bounded["content"] = _with_bounded_space(node["content"])
    return bounded


def _check_no_nul(text: str) -> None:
    """The library takes NUL for the end of a string, and lets an answer without it pass."""
    if _NUL.search(text.replace(r"\\", "")):
        raise ValueError(
            "a NUL character cannot be honoured by xgrammar; leave it out, or start with "
            "--grammar-backend llguidance"
        )


def _reason(error: Exception) -> str:
    """What the library says, without its own place and time."""
    return _PLACE.sub("", str(error).strip()).strip() or "the library refuses it"


def create_xgrammar_backend(
    server_args: Any, tokenizer: Any, vocab_size: int, eos_token_ids: Any
) -> XGrammarGrammarBackend:
    if isinstance(getattr(server_args, "constrained_json_whitespace_pattern", None), str):
        raise ValueError(
            "--constrained-json-whitespace-pattern cannot be honoured by xgrammar; leave it out, "
            "or start with --grammar-backend llguidance"
        )
    return XGrammarGrammarBackend(
        TokenVocabulary.of(tokenizer, vocab_size, eos_token_ids),
        GrammarLimits.of(server_args),
        is_compact=getattr(server_args, "constrained_json_disable_any_whitespace", False) is True,
    )


def _tokenizer_info(vocabulary: TokenVocabulary) -> "TokenizerInfo":
    import xgrammar

    return xgrammar.TokenizerInfo(
        list(vocabulary.tokens),
        xgrammar.VocabType.RAW,
        vocab_size=vocabulary.vocab_size,
        stop_token_ids=list(vocabulary.end_ids),
    )
