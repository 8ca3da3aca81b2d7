"""Grammars by the library llguidance, which computes masks by derivatives while it parses."""

import dataclasses
import json
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec

from sglang.srt.constrained.base_grammar_backend import BaseGrammarBackend, GrammarStats
from sglang.srt.constrained.compile_process import CompileServer
from sglang.srt.constrained.constraint_text import prepared_text, why_refused
from sglang.srt.constrained.json_schema_rules import GUIDANCE_RULES
from sglang.srt.constrained.limits import GrammarLimits
from sglang.srt.constrained.structural_tags import LarkWriter, with_options
from sglang.srt.constrained.token_mask import BitmaskGrammar, own_row, row_of
from sglang.srt.constrained.vocabulary import TokenVocabulary

if TYPE_CHECKING:
    import torch
    from llguidance import LLMatcher, LLTokenizer

WHITE_SPACE = r"[\x20\x0A\x0D\x09]{0,8}"  # between two tokens of JSON; bounded, so it ends
HEAD = '%llguidance {"no_forcing": true}\n'  # a mask holds all tokens that may follow
BYTES_OF_A_CHARACTER = 64  # that a parser takes, roughly, for each of its text
NUM_COMPILERS = 2  # processes
MEMORY_FACTOR = 8  # bytes while compiling, per byte that lexer states may take
STACK_BYTES = 1 << 20
_PLACE = re.compile(r"^(?:at \d+\(\d+\): )?(?:failed to compile JSON schema: )?")
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
            raise ValueError(f"token {token}: {_reason(self._matcher)}")
        self.current_token = token

    def rollback(self, k: int) -> None:
        if not self._matcher.rollback(k):
            raise ValueError(f"{k} tokens back: {_reason(self._matcher)}")
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
            raise ValueError(_reason(self._matcher))


class GuidanceBackend(BaseGrammarBackend):
    """Builds a parser per constraint, and each answer walks a copy of it.

    A process of its own builds it first: it takes the library's text, and a mistake of the library
    there ends nothing else.
    """

    compile_grace = 30.0  # the server ends a compilation in time; building its result takes longer

    def __init__(
        self, vocabulary: TokenVocabulary, limits: GrammarLimits, json_options: dict[str, Any]
    ) -> None:
        super().__init__()
        self.limits = limits
        self._tokenizer = _tokenizer(vocabulary)
        self._end_row = row_of(vocabulary.end_ids, vocabulary.vocab_size)
        self._compilers = CompileServer(
            f"{__name__}:make_compiler",
            msgspec.msgpack.encode(
                _Payload(vocabulary.tokens, vocabulary.end_ids, limits.compiled_bytes, json_options)
            ),
            num_processes=NUM_COMPILERS,
            memory_bytes=limits.compiled_bytes * MEMORY_FACTOR,
            preload=["llguidance"],
        )

    def check(self, key_type: str, key_string: str) -> str | None:
        return why_refused(key_type, key_string, GUIDANCE_RULES)

    def compile_grammar(self, key_type: str, key_string: str) -> GuidanceGrammar:
        text = self._compilers.compile(key_type, key_string, self.limits.compile_seconds).decode()
        return GuidanceGrammar(
            _matcher(self._tokenizer, text, self.limits.compiled_bytes),
            self._end_row,
            len(text) * BYTES_OF_A_CHARACTER,
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
    json_options: dict[str, Any]


def make_compiler(payload: bytes) -> Callable[[str, str], bytes]:
    """Runs once in each compiling process."""
    known = msgspec.msgpack.decode(payload, type=_Payload)
    vocabulary = TokenVocabulary(known.tokens, known.end_ids)
    tokenizer = _tokenizer(vocabulary)

    def compile_text(kind: str, text: str) -> bytes:
        written = grammar_text(kind, text, known.json_options)
        matcher = _matcher(tokenizer, written, known.compiled_bytes)
        is_empty = not any(matcher.compute_bitmask())
        if is_empty or matcher.stop_reason() == "NoExtensionBias":
            raise ValueError("no text can satisfy it")
        if matcher.is_error():
            raise ValueError(_reason(matcher))
        return written.encode()

    def compile_in_thread(kind: str, text: str) -> bytes:
        """With less stack than the engine's threads have: what works here works there."""
        threading.stack_size(STACK_BYTES)
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(compile_text, kind, text).result()

    return compile_in_thread


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
    return _PLACE.sub("", first).removesuffix("<non-verbose/>").strip() or "the grammar failed"
