"""Lets a model reason before its constraint begins, whatever backend compiles the constraint."""

from typing import TYPE_CHECKING, Any

from sglang.srt.constrained.base_grammar_backend import (
    BaseGrammarBackend,
    BaseGrammarObject,
    GrammarKey,
    InvalidGrammarObject,
)

if TYPE_CHECKING:
    import torch


class ReasonerGrammarObject(BaseGrammarObject):
    """Passes tokens to the grammar once the answer has left its reasoning.

    Reasoning begins by `maybe_init_reasoning(True)` and ends with the tokens `think_end_ids`. Until
    then all tokens are allowed.
    """

    def __init__(self, grammar: BaseGrammarObject, think_end_ids: list[int]) -> None:
        super().__init__()
        self.grammar = grammar
        self.grammar_stats = grammar.grammar_stats
        self.memory_bytes = grammar.memory_bytes
        self._think_end_ids = think_end_ids
        self._is_reasoning = False
        self._reasoned: list[int] = []  # tokens, those that end it included
        self._num_answered = 0  # tokens after it
        # One mask serves a batch, so the forms of the grammar are ours.
        for name in ("reset_vocab_mask", "move_vocab_mask", "apply_vocab_mask"):
            setattr(self, name, getattr(grammar, name))

    def maybe_init_reasoning(self, reasoning: bool) -> None:
        self._is_reasoning = reasoning
        self._reasoned = []

    def accept_token(self, token: int) -> None:
        if not self._is_reasoning:
            self.grammar.accept_token(token)
            self._num_answered += 1
            return
        self._reasoned.append(token)
        if self._reasoned[-len(self._think_end_ids) :] == self._think_end_ids:
            self._is_reasoning = False

    def rollback(self, k: int) -> None:
        answered = min(k, self._num_answered)
        if k - answered > len(self._reasoned):
            raise ValueError(
                f"{k} tokens cannot be taken back of {self._num_answered + len(self._reasoned)}"
            )
        if answered:
            self.grammar.rollback(answered)
            self._num_answered -= answered
        if k > answered:
            del self._reasoned[answered - k :]
            self._is_reasoning = True  # the last token of its end is among them

    def is_terminated(self) -> bool:
        return not self._is_reasoning and self.grammar.is_terminated()

    def copy(self) -> "ReasonerGrammarObject":
        copied = ReasonerGrammarObject(self.grammar.copy(), self._think_end_ids)
        copied._is_reasoning = self._is_reasoning
        copied._reasoned = self._reasoned.copy()
        copied._num_answered = self._num_answered
        return copied

    def allocate_vocab_mask(self, vocab_size: int, batch_size: int, device: Any) -> "torch.Tensor":
        return self.grammar.allocate_vocab_mask(vocab_size, batch_size, device)

    def fill_vocab_mask(self, vocab_mask: "torch.Tensor", idx: int) -> None:
        if not self._is_reasoning:
            self.grammar.fill_vocab_mask(vocab_mask, idx)

    def try_jump_forward(self, tokenizer: Any) -> tuple[list[int], str] | None:
        return None if self._is_reasoning else self.grammar.try_jump_forward(tokenizer)

    def jump_forward_str_state(self, helper: tuple[list[int], str]) -> tuple[str, int]:
        return self.grammar.jump_forward_str_state(helper)

    def jump_and_retokenize(
        self, old_output_ids: list[int], new_output_ids: list[int], next_state: int
    ) -> None:
        self.grammar.jump_and_retokenize(old_output_ids, new_output_ids, next_state)


class ReasonerGrammarBackend(BaseGrammarBackend):
    """Wraps what a backend compiles. A plugin's factory returns one to let models reason:

    return ReasonerGrammarBackend(MyBackend(), think_end_ids=[1234])
    """

    def __init__(self, backend: BaseGrammarBackend, think_end_ids: list[int]) -> None:
        super().__init__(backend.executor._max_workers)
        if not think_end_ids:
            raise ValueError("think_end_ids is empty; name the tokens that end the reasoning")
        self.backend = backend
        self.limits = backend.limits
        self.compile_grace = backend.compile_grace
        self.think_end_ids = list(think_end_ids)

    def check(self, key_type: str, key_string: str) -> str | None:
        return self.backend.check(key_type, key_string)

    def reset(self) -> None:
        super().reset()
        self.backend.reset()

    def close(self) -> None:
        self.backend.close()
        super().close()

    def _init_value_dispatch(
        self, key: GrammarKey, require_reasoning: bool
    ) -> BaseGrammarObject | None:
        grammar = self.backend._init_value_dispatch(key, False)
        if grammar is None or isinstance(grammar, InvalidGrammarObject):
            return grammar
        wrapped = ReasonerGrammarObject(grammar, self.think_end_ids)
        wrapped.maybe_init_reasoning(require_reasoning)
        return wrapped
