"""The tokens that a grammar backend chooses from, as bytes."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang_router.text import Tokenizer


class UnfitVocabulary(ValueError):
    """No constrained answer could be made of these tokens."""


@dataclass(frozen=True)
class TokenVocabulary:
    """What the rows of the logits stand for.

    `tokens[i]` are the bytes that token `i` adds to an answer; empty where no constrained answer
    may contain it: special tokens, ids without a token, rows that pad the logits.
    """

    tokens: tuple[bytes, ...]
    end_ids: tuple[int, ...]  # each of them ends an answer

    @classmethod
    def of(
        cls, tokenizer: "Tokenizer", vocab_size: int, eos_token_ids: Collection[int] | None
    ) -> "TokenVocabulary":
        known = min(tokenizer.vocab_size, vocab_size)
        ends = set(tokenizer.eos_token_ids if eos_token_ids is None else eos_token_ids)
        end_ids = tuple(sorted(id for id in ends if 0 <= id < vocab_size))
        if not end_ids:
            raise UnfitVocabulary(
                "a constrained answer ends with an end token, and the model's configuration "
                f"names none below its vocabulary size of {vocab_size}; set eos_token_id in its "
                "generation_config.json"
            )
        tokens = [
            b"" if id in ends or tokenizer.is_special(id) else tokenizer.token_bytes(id)
            for id in range(known)
        ]
        return cls(tuple(tokens) + (b"",) * (vocab_size - known), end_ids)

    @property
    def vocab_size(self) -> int:
        return len(self.tokens)

    @property
    def usable_ids(self) -> list[int]:
        """What a constrained answer may hold, and what ends it."""
        return [*(id for id, token in enumerate(self.tokens) if token), *self.end_ids]
