"""Grammars by the library llguidance, which computes masks by derivatives while it parses."""

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from sglang.srt.constrained.base_grammar_backend import BaseGrammarBackend, GrammarStats
from sglang.srt.constrained.token_mask import BitmaskGrammar, own_row, row_of
from sglang.srt.constrained.vocabulary import TokenVocabulary

if TYPE_CHECKING:
    import torch
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

WHITE_SPACE = r"[\x20\x0A\x0D\x09]{0,8}"  # between two tokens of JSON; bounded, so it ends
HEAD = '%llguidance {"no_forcing": true}\n'  # a mask holds all tokens that may follow
BYTES_OF_A_STATE = 2048  # of the library's lexer


class GuidanceGrammar(BitmaskGrammar):
    """How far one answer has come."""

    def __init__(
        self,
        matcher: "LLMatcher",
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
        if not self._matcher.consume_token(token):
            raise ValueError(f"token {token}: {_first_line(self._matcher.get_error())}")
        self.current_token = token

    def rollback(self, k: int) -> None:
        if not self._matcher.rollback(k):
            raise ValueError(f"{k} tokens back: {_first_line(self._matcher.get_error())}")
        self.current_token = None

    def is_terminated(self) -> bool:
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    def copy(self) -> "GuidanceGrammar":
        stats = dataclasses.replace(self.grammar_stats, is_cache_hit=True, tree_traversal_time=[])
        return GuidanceGrammar(self._matcher.deep_copy(), self._end_row, self.memory_bytes, stats)

    def fill_vocab_mask(self, vocab_mask: "torch.Tensor", idx: int) -> None:
        row = own_row(vocab_mask, idx, self._end_row.shape[0])
        if self.is_terminated():
            row.copy_(self._end_row)
            return
        self._matcher.unsafe_compute_mask_ptr(row.data_ptr(), row.numel() * row.element_size())
        if self._matcher.is_error():
            raise ValueError(_first_line(self._matcher.get_error()))


class GuidanceBackend(BaseGrammarBackend):
    """Builds a parser per constraint; each answer walks a copy of it."""

    def __init__(self, vocabulary: TokenVocabulary, json_options: dict[str, Any]) -> None:
        super().__init__()
        self._tokenizer = _tokenizer(vocabulary)
        self._json_options = json_options
        self._end_row = row_of(vocabulary.end_ids, vocabulary.vocab_size)

    def compile_grammar(self, key_type: str, key_string: str) -> GuidanceGrammar:
        from llguidance import LLMatcher

        matcher = LLMatcher(
            self._tokenizer,
            grammar_text(key_type, key_string, self._json_options),
            log_level=0,
            limits=_limits(1 << 26),
        )
        if matcher.is_error():
            raise ValueError(_first_line(matcher.get_error()))
        return GuidanceGrammar(matcher, self._end_row, 0, GrammarStats(dispatch_type=key_type))


def grammar_text(kind: str, text: str, json_options: dict[str, Any]) -> str:
    """The constraint in the library's own language."""
    from llguidance.gbnf_to_lark import gbnf_to_lark

    if kind == "json":
        schema = json.loads(text)
        options = {"x-guidance": json_options}
        schema = (
            {**schema, **options} if isinstance(schema, dict) else {"allOf": [schema]} | options
        )
        return f"{HEAD}start: %json {json.dumps(schema)}\n"
    if kind == "regex":
        return HEAD + "start: /" + text.replace("/", "\\/") + "/\n"
    if kind == "ebnf":
        return HEAD + gbnf_to_lark(text).removeprefix("%llguidance {}")
    raise ValueError(f"{kind} is not supported")


def create_guidance_backend(
    server_args: Any, tokenizer: Any, vocab_size: int, eos_token_ids: Any
) -> GuidanceBackend:
    vocabulary = TokenVocabulary.of(tokenizer, vocab_size, eos_token_ids)
    return GuidanceBackend(vocabulary, json_options(server_args))


def json_options(server_args: Any) -> dict[str, Any]:
    """Of the library's compiler of JSON schemas: the white space, and escapes in strings."""
    if getattr(server_args, "constrained_json_disable_any_whitespace", False):
        return {"whitespace_flexible": False}
    pattern = getattr(server_args, "constrained_json_whitespace_pattern", None)
    return {"whitespace_pattern": pattern or WHITE_SPACE}


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


def _limits(compiled_bytes: int) -> "LLParserLimits":
    from llguidance import LLParserLimits

    return LLParserLimits(max_lexer_states=compiled_bytes // BYTES_OF_A_STATE, verbose_errors=False)


def _first_line(message: str) -> str:
    return message.strip().partition("\n")[0] or "the grammar failed"
