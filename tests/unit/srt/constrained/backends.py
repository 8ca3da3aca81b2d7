"""Both built-in grammar backends over a small vocabulary, and a walk through their masks."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sglang.srt.constrained.base_grammar_backend import BaseGrammarBackend, BaseGrammarObject
from sglang.srt.constrained.json_schema_rules import SchemaRules, prepare_schema
from sglang.srt.constrained.limits import GrammarLimits
from sglang.srt.constrained.llguidance_backend import GuidanceBackend, json_options
from sglang.srt.constrained.vocabulary import TokenVocabulary
from sglang.srt.constrained.xgrammar_backend import XGrammarGrammarBackend

NAMES = ("llguidance", "xgrammar")
PIECES = (b'{"', b'":', b'", "', b"true", b"12", b"aaa", "é".encode(), b"</", b"  ")
SPECIAL = 256 + len(PIECES)  # a special token: no text may hold it
ENDS = (SPECIAL + 1, SPECIAL + 2)
PADDING = SPECIAL + 3  # the first row without a token
VOCABULARY = TokenVocabulary(
    (*(bytes([byte]) for byte in range(256)), *PIECES, *(b"",) * (64 - len(PIECES) % 64)), ENDS
)


def why_not(schema: str, rules: SchemaRules) -> str | None:
    """Why the schema is not honoured, however long it is; None: it is."""
    try:
        prepare_schema(schema, rules)
    except ValueError as error:
        return str(error)
    return None


@contextmanager
def backend_of(
    name: str, limits: GrammarLimits | None = None, *, is_compact: bool = False
) -> Iterator[BaseGrammarBackend]:
    """One that ends its processes afterwards."""
    limits = limits or GrammarLimits()
    backend: BaseGrammarBackend
    if name == "xgrammar":
        backend = XGrammarGrammarBackend(VOCABULARY, limits, is_compact=is_compact)
    else:
        backend = GuidanceBackend(VOCABULARY, limits, json_options(_Options(is_compact)))
    try:
        yield backend
    finally:
        backend.close()


class _Options:
    constrained_json_whitespace_pattern = None

    def __init__(self, is_compact: bool) -> None:
        self.constrained_json_disable_any_whitespace = is_compact


def ids_of(text: str) -> list[int]:
    """The text as tokens, the longest that fit."""
    data, ids = text.encode(), []
    while data:
        piece = max((p for p in PIECES if data.startswith(p)), key=len, default=data[:1])
        ids.append(256 + PIECES.index(piece) if piece in PIECES else piece[0])
        data = data[len(piece) :]
    return ids


def allowed(grammar: BaseGrammarObject) -> set[int]:
    """The tokens that the mask allows next."""
    size = VOCABULARY.vocab_size
    mask: Any = grammar.allocate_vocab_mask(size, 2, "cpu")
    grammar.fill_vocab_mask(mask, 1)
    assert mask[0].eq(-1).all(), "only the row of the grammar is written"
    return {id for id in range(size) if int(mask[1, id // 32]) >> (id % 32) & 1}


def accepts(grammar: BaseGrammarObject, text: str) -> bool:
    """Whether the masks let an answer be this text."""
    state = grammar.copy()
    for token in ids_of(text):
        if token not in allowed(state):
            return False
        state.accept_token(token)
    return set(ENDS) <= allowed(state)
