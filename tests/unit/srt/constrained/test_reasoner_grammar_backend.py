"""A model may reason first; its constraint begins after the tokens that end the reasoning."""

from types import SimpleNamespace

import pytest
import torch

from sglang.srt.constrained.base_grammar_backend import (
    BaseGrammarBackend,
    BaseGrammarObject,
    InvalidGrammarObject,
    create_grammar_backend,
    register_grammar_backend,
)
from sglang.srt.constrained.reasoner_grammar_backend import (
    ReasonerGrammarBackend,
    ReasonerGrammarObject,
)
from sglang.srt.extension_points import GRAMMAR_BACKENDS

END = [7, 8]
VOCAB = 10


class Counting(BaseGrammarObject):
    """Allows one token, the number of tokens so far; a mask is one boolean per token."""

    def __init__(self, count: int = 0) -> None:
        super().__init__()
        self.count = count
        self.memory_bytes = 5

    def accept_token(self, token: int) -> None:
        if token != self.count:
            raise ValueError(f"not {token}")
        self.count += 1

    def rollback(self, k: int) -> None:
        self.count -= k

    def is_terminated(self) -> bool:
        return self.count == 3

    def copy(self) -> "Counting":
        return Counting(self.count)

    def allocate_token_mask(self, vocab_size: int, batch_size: int, device: str) -> torch.Tensor:
        return torch.ones(batch_size, vocab_size, dtype=torch.bool, device=device)

    def fill_vocab_mask(self, vocab_mask: torch.Tensor, idx: int) -> None:
        vocab_mask[idx] = False
        vocab_mask[idx, self.count] = True

    @staticmethod
    def move_vocab_mask(vocab_mask: torch.Tensor, device: str) -> torch.Tensor:
        return vocab_mask.to(device)

    @staticmethod
    def apply_vocab_mask(logits: torch.Tensor, vocab_mask: torch.Tensor) -> None:
        logits.masked_fill_(~vocab_mask, float("-inf"))


class CountingBackend(BaseGrammarBackend):
    def compile_grammar(self, key_type: str, key_string: str) -> BaseGrammarObject:
        if key_string == "bad":
            return InvalidGrammarObject("bad")
        return Counting()

    def check(self, key_type: str, key_string: str) -> str | None:
        return "worse" if key_string == "worse" else None


def reasoning() -> ReasonerGrammarObject:
    grammar = ReasonerGrammarObject(Counting(), END)
    grammar.maybe_init_reasoning(True)
    return grammar


def allowed(grammar: BaseGrammarObject) -> list[int]:
    mask = grammar.allocate_vocab_mask(VOCAB, 2, "cpu")
    grammar.fill_vocab_mask(mask, 1)
    logits = torch.zeros(2, VOCAB)
    grammar.apply_vocab_mask(logits, grammar.move_vocab_mask(mask, "cpu"))
    return logits[1].isfinite().nonzero().flatten().tolist()


def feed(grammar: BaseGrammarObject, *tokens: int) -> None:
    for token in tokens:
        grammar.accept_token(token)


def test_without_reasoning_the_constraint_begins_at_once() -> None:
    grammar = ReasonerGrammarObject(Counting(), END)
    grammar.maybe_init_reasoning(False)
    assert allowed(grammar) == [0]
    feed(grammar, 0, 1, 2)
    assert grammar.is_terminated()


def test_reasoning_is_free_and_ends_with_all_its_end_tokens() -> None:
    grammar = reasoning()
    feed(grammar, 5, 7, 5, 8, 7, 7)
    assert allowed(grammar) == list(range(VOCAB))
    feed(grammar, 8)
    assert allowed(grammar) == [0]
    with pytest.raises(ValueError, match="not 5"):
        grammar.accept_token(5)


def test_reasoning_does_not_terminate() -> None:
    inner = Counting(3)
    grammar = ReasonerGrammarObject(inner, END)
    grammar.maybe_init_reasoning(True)
    assert not grammar.is_terminated()
    feed(grammar, *END)
    assert grammar.is_terminated()


def test_rollback_crosses_the_border() -> None:
    grammar = reasoning()
    feed(grammar, 1, *END, 0, 1)
    grammar.rollback(1)
    assert allowed(grammar) == [1]
    grammar.rollback(2)  # one of the answer, one of the end
    assert allowed(grammar) == list(range(VOCAB))
    feed(grammar, 8, 0, 1, 2)
    assert grammar.is_terminated()
    grammar.rollback(6)
    feed(grammar, 8)
    assert allowed(grammar) == list(range(VOCAB)), "the end begins anew"
    feed(grammar, *END)
    assert allowed(grammar) == [0]


def test_no_more_is_taken_back_than_there_is() -> None:
    grammar = reasoning()
    feed(grammar, 1, *END, 0)
    with pytest.raises(ValueError, match="5 tokens cannot be taken back of 4"):
        grammar.rollback(5)
    assert allowed(grammar) == [1]


def test_copies_go_their_own_way() -> None:
    first = reasoning()
    feed(first, 7)
    second = first.copy()
    feed(first, 8, 0)
    feed(second, 3)
    assert allowed(first) == [1]
    assert allowed(second) == list(range(VOCAB))
    assert second.memory_bytes == 5


def test_any_backend_can_be_wrapped() -> None:
    backend = ReasonerGrammarBackend(CountingBackend(), END)
    future, is_hit = backend.get_cached_or_future_value(("json", "{}"), True)
    assert not is_hit
    compiled = future.result()  # type: ignore[union-attr]
    assert isinstance(compiled, ReasonerGrammarObject)
    backend.set_cache(("json", "{}"), compiled)
    for require_reasoning, expected in ((True, list(range(VOCAB))), (False, [0])):
        found, is_hit = backend.get_cached_or_future_value(("json", "{}"), require_reasoning)
        assert is_hit
        assert allowed(found) == expected  # type: ignore[arg-type]
    assert backend.check("json", "worse") == "worse"
    bad = backend.get_cached_or_future_value(("json", "bad"), True)[0].result()  # type: ignore[union-attr]
    assert isinstance(bad, InvalidGrammarObject)
    backend.close()


def test_nothing_ends_a_reasoning_without_end_tokens() -> None:
    with pytest.raises(ValueError, match="think_end_ids is empty"):
        ReasonerGrammarBackend(CountingBackend(), [])


def test_what_a_plugin_registers_is_not_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GRAMMAR_BACKENDS, "_entries", dict(GRAMMAR_BACKENDS._entries))
    register_grammar_backend("counting", lambda *given: CountingBackend())
    args = SimpleNamespace(grammar_backend="counting", reasoning_parser="x")
    backend = create_grammar_backend(args, None, VOCAB, {9}, END)
    assert isinstance(backend, CountingBackend)


@pytest.mark.parametrize(("parser", "ends"), [(None, END), ("x", None), ("x", END)])
def test_built_in_backends_are_wrapped_when_a_parser_is_set(
    parser: str | None, ends: list[int] | None
) -> None:
    tokenizer = SimpleNamespace(
        vocab_size=4, eos_token_ids=[3], is_special=lambda id: id == 3, token_bytes=lambda id: b"a"
    )
    args = SimpleNamespace(grammar_backend="llguidance", reasoning_parser=parser)
    backend = create_grammar_backend(args, tokenizer, 4, {3}, ends)
    assert backend is not None
    try:
        assert isinstance(backend, ReasonerGrammarBackend) == bool(parser and ends)
    finally:
        backend.close()
