"""Grammars by the library xgrammar, compiled in a process that can be ended."""

import dataclasses
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from sglang.srt.constrained.base_grammar_backend import BaseGrammarBackend, GrammarStats
from sglang.srt.constrained.compile_process import CompileServer
from sglang.srt.constrained.constraint_text import prepared_text, why_refused
from sglang.srt.constrained.limits import GrammarLimits, too_big
from sglang.srt.constrained.structural_tags import Format
from sglang.srt.constrained.token_mask import BitmaskGrammar, own_row, row_of
from sglang.srt.constrained.vocabulary import TokenVocabulary
from sglang.srt.constrained.xgrammar_schema import XGRAMMAR_RULES

if TYPE_CHECKING:
    import torch
    from xgrammar import GrammarMatcher, TokenizerInfo

MOST_WHITE_SPACE = 8  # characters between two tokens of JSON
NUM_COMPILERS = 2  # processes
MEMORY_FACTOR = 8  # bytes while compiling, per byte of the largest result that is allowed
# A string has one spelling, or a name in JSON could come twice, once with a `\\u…` in it.
ANY_ESCAPE = r'(([\"\\/bfnrt]) | ("u" [A-Fa-f0-9] [A-Fa-f0-9] [A-Fa-f0-9] [A-Fa-f0-9]))'
ONE_ESCAPE = r"(([\"\\bfnrt]))"
_WHITE_SPACE = re.compile(r"whitespace(?:_\d+)?\{0, 8\} ?")
_PLACE = re.compile(r"^\[[\d:]+\] \S+:\d+: ")


@dataclasses.dataclass(frozen=True)
class _Rows:
    """Sets of tokens, as rows of a mask."""

    ends: "torch.Tensor"  # [vocab / 32]
    usable: "torch.Tensor"  # the same; all that may be in an answer, and the ends


class XGrammarGrammar(BitmaskGrammar):
    """How far one answer has come; the compiled grammar is shared and never changes."""

    def __init__(
        self,
        matcher: "GrammarMatcher",
        rows: "_Rows",
        memory_bytes: int,
        grammar_stats: GrammarStats,
    ) -> None:
        super().__init__()
        self.memory_bytes = memory_bytes
        self.grammar_stats: GrammarStats = grammar_stats
        self._matcher = matcher
        self._rows = rows

    def accept_token(self, token: int) -> None:
        if not self._matcher.accept_token(token):
            raise ValueError(f"token {token} is not what the grammar allows here")
        self.current_token = token

    def rollback(self, k: int) -> None:
        self._matcher.rollback(k)
        self.current_token = None

    def is_terminated(self) -> bool:
        if self._matcher.is_terminated():
            return True
        if not self._matcher.is_completed():
            return False
        row = self._rows.ends.clone()
        self._fill(row)
        return not bool((row & ~self._rows.ends).any())

    def copy(self) -> "XGrammarGrammar":
        stats = dataclasses.replace(self.grammar_stats, is_cache_hit=True, tree_traversal_time=[])
        return XGrammarGrammar(self._matcher.fork(), self._rows, self.memory_bytes, stats)

    def fill_vocab_mask(self, vocab_mask: "torch.Tensor", idx: int) -> None:
        self._fill(own_row(vocab_mask, idx, self._rows.ends.shape[0]))

    def _fill(self, row: "torch.Tensor") -> None:
        if self._matcher.is_terminated():
            row.copy_(self._rows.ends)
        elif self._matcher.fill_next_token_bitmask(row):
            row &= self._rows.usable
        else:
            row.copy_(self._rows.usable)


class XGrammarGrammarBackend(BaseGrammarBackend):
    """Compiles in processes of its own; here, the result is read and walked."""

    compile_grace = 30.0  # the server ends a compilation in time; reading its result takes longer

    def __init__(
        self, vocabulary: TokenVocabulary, limits: GrammarLimits, *, is_compact: bool = False
    ) -> None:
        super().__init__()
        import xgrammar

        self.limits = limits
        self._xgrammar = xgrammar
        self._tokenizer_info = _tokenizer_info(vocabulary)
        self._end_row = row_of(vocabulary.end_ids, vocabulary.vocab_size)
        self._usable_row = row_of(vocabulary.usable_ids, vocabulary.vocab_size)
        self._compilers = CompileServer(
            f"{__name__}:make_compiler",
            msgspec.msgpack.encode(
                _Payload(vocabulary.tokens, vocabulary.end_ids, limits.compiled_bytes, is_compact)
            ),
            num_processes=NUM_COMPILERS,
            memory_bytes=limits.compiled_bytes * MEMORY_FACTOR,
            preload=["xgrammar"],
        )

    def check(self, key_type: str, key_string: str) -> str | None:
        return why_refused(key_type, key_string, XGRAMMAR_RULES)

    def compile_grammar(self, key_type: str, key_string: str) -> XGrammarGrammar:
        result = self._compilers.compile(key_type, key_string, self.limits.compile_seconds)
        compiled = self._xgrammar.CompiledGrammar.deserialize_json(
            result.decode(), self._tokenizer_info
        )
        return XGrammarGrammar(
            self._xgrammar.GrammarMatcher(compiled),
            _Rows(self._end_row, self._usable_row),
            int(compiled.memory_size_bytes),
            GrammarStats(dispatch_type=key_type),
        )

    def close(self) -> None:
        self._compilers.close()
        super().close()


class _Payload(msgspec.Struct, frozen=True):
    """What a compiling process has to know."""

    tokens: tuple[bytes, ...]
    end_ids: tuple[int, ...]
    compiled_bytes: int
    is_compact: bool


def make_compiler(payload: bytes) -> Callable[[str, str], bytes]:
    """Runs once in each compiling process."""
    import xgrammar

    known = msgspec.msgpack.decode(payload, type=_Payload)
    vocabulary = TokenVocabulary(known.tokens, known.end_ids)
    compiler = xgrammar.GrammarCompiler(
        _tokenizer_info(vocabulary), max_threads=1, cache_enabled=False
    )

    def compile_text(kind: str, text: str) -> bytes:
        try:
            compiled = compiler.compile_grammar(grammar_text(kind, text, known.is_compact))
        except RuntimeError as error:
            raise ValueError(_reason(error)) from None
        size = int(compiled.memory_size_bytes)
        if size > known.compiled_bytes:
            raise ValueError(too_big(size, known.compiled_bytes))
        row = row_of((), vocabulary.vocab_size)
        xgrammar.GrammarMatcher(compiled).fill_next_token_bitmask(row)
        if not row.any():
            raise ValueError("no text can satisfy it")
        return str(compiled.serialize_json()).encode()

    return compile_text


def grammar_text(kind: str, text: str, is_compact: bool) -> str:
    """The constraint as a grammar in which each string has one spelling, and white space ends."""
    from xgrammar import Grammar

    text = prepared_text(kind, text, XGRAMMAR_RULES)
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
    if is_compact and kind == "structural_tag":
        written = _WHITE_SPACE.sub("", written)
    return written


def _with_bounded_space(node: Format) -> Format:
    """The format, where white space in JSON has an end."""
    if node["type"] == "json_schema":
        return {**node, "max_whitespace_cnt": MOST_WHITE_SPACE}
    bounded = dict(node)
    for field in ("elements", "tags"):
        if field in node:
            bounded[field] = [_with_bounded_space(each) for each in node[field]]
    if "content" in node:
        bounded["content"] = _with_bounded_space(node["content"])
    return bounded


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
