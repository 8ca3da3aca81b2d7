"""Grammars by the library xgrammar, compiled in a process that can be ended."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from sglang.srt.constrained.base_grammar_backend import BaseGrammarBackend, GrammarStats
from sglang.srt.constrained.token_mask import BitmaskGrammar, own_row, row_of
from sglang.srt.constrained.vocabulary import TokenVocabulary

if TYPE_CHECKING:
    import torch
    from xgrammar import GrammarMatcher, TokenizerInfo

MOST_WHITE_SPACE = 8  # characters between two tokens of JSON


class XGrammarGrammar(BitmaskGrammar):
    """How far one answer has come; the compiled grammar is shared and never changes."""

    def __init__(
        self,
        matcher: "GrammarMatcher",
        end_row: "torch.Tensor",
        memory_bytes: int,
        grammar_stats: GrammarStats,
    ) -> None:
        super().__init__()
        self.memory_bytes = memory_bytes
        self.grammar_stats: GrammarStats = grammar_stats
        self._matcher = matcher
        self._end_row = end_row  # [vocab / 32], the end tokens

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
        row = self._end_row.new_full(self._end_row.shape, -1)
        self._fill(row)
        return not bool((row & ~self._end_row).any())

    def copy(self) -> "XGrammarGrammar":
        stats = dataclasses.replace(self.grammar_stats, is_cache_hit=True, tree_traversal_time=[])
        return XGrammarGrammar(self._matcher.fork(), self._end_row, self.memory_bytes, stats)

    def fill_vocab_mask(self, vocab_mask: "torch.Tensor", idx: int) -> None:
        self._fill(own_row(vocab_mask, idx, self._end_row.shape[0]))

    def _fill(self, row: "torch.Tensor") -> None:
        if self._matcher.is_terminated():
            row.copy_(self._end_row)
        elif not self._matcher.fill_next_token_bitmask(row):
            row.fill_(-1)


class XGrammarGrammarBackend(BaseGrammarBackend):
    """Compiles by `compile_text`, in a process of its own; here, the result is read and walked."""

    def __init__(
        self, vocabulary: TokenVocabulary, compile_text: Callable[[str, str], bytes]
    ) -> None:
        super().__init__()
        import xgrammar

        self._xgrammar = xgrammar
        self._compile_text = compile_text
        self._tokenizer_info = _tokenizer_info(vocabulary)
        self._end_row = row_of(vocabulary.end_ids, vocabulary.vocab_size)

    def compile_grammar(self, key_type: str, key_string: str) -> XGrammarGrammar:
        compiled = self._xgrammar.CompiledGrammar.deserialize_json(
            self._compile_text(key_type, key_string).decode(), self._tokenizer_info
        )
        return XGrammarGrammar(
            self._xgrammar.GrammarMatcher(compiled),
            self._end_row,
            int(compiled.memory_size_bytes),
            GrammarStats(dispatch_type=key_type),
        )


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
    compiler = xgrammar.GrammarCompiler(
        _tokenizer_info(TokenVocabulary(known.tokens, known.end_ids)),
        max_threads=1,
        cache_enabled=False,
    )
    compile_by_kind: dict[str, Callable[[str], Any]] = {
        "json": lambda text: compiler.compile_json_schema(
            text,
            any_whitespace=not known.is_compact,
            separators=(",", ":") if known.is_compact else None,
            strict_mode=False,
            max_whitespace_cnt=None if known.is_compact else MOST_WHITE_SPACE,
        ),
        "regex": compiler.compile_regex,
        "ebnf": compiler.compile_grammar,
        "structural_tag": compiler.compile_structural_tag,
    }

    def compile_text(kind: str, text: str) -> bytes:
        compiled = compile_by_kind[kind](text)
        size = int(compiled.memory_size_bytes)
        if size > known.compiled_bytes:
            raise ValueError(
                f"compiled, it takes {size} bytes, and --grammar-max-compiled-bytes allows "
                f"{known.compiled_bytes}; make it smaller"
            )
        return str(compiled.serialize_json()).encode()

    return compile_text


def create_xgrammar_backend(
    server_args: Any, tokenizer: Any, vocab_size: int, eos_token_ids: Any
) -> XGrammarGrammarBackend:
    vocabulary = TokenVocabulary.of(tokenizer, vocab_size, eos_token_ids)
    is_compact = bool(getattr(server_args, "constrained_json_disable_any_whitespace", False))
    payload = _Payload(vocabulary.tokens, vocabulary.end_ids, 1 << 26, is_compact)
    return XGrammarGrammarBackend(vocabulary, make_compiler(msgspec.msgpack.encode(payload)))


def _tokenizer_info(vocabulary: TokenVocabulary) -> "TokenizerInfo":
    import xgrammar

    return xgrammar.TokenizerInfo(
        list(vocabulary.tokens),
        xgrammar.VocabType.RAW,
        vocab_size=vocabulary.vocab_size,
        stop_token_ids=list(vocabulary.end_ids),
    )
