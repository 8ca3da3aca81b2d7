"""Keeps bytes that are no character of UTF-8 out of answers whose grammar counts bytes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sglang.srt.constrained.token_mask import row_of
from sglang.srt.constrained.vocabulary import TokenVocabulary

if TYPE_CHECKING:
    import torch

# After these first bytes only some second bytes make a character (RFC 3629, section 4); the others
# spell a character in too many bytes, half of a pair, or a number above all characters.
SECOND_BYTES = {
    0xE0: range(0xA0, 0xC0),
    0xED: range(0x80, 0xA0),
    0xF0: range(0x90, 0xC0),
    0xF4: range(0x80, 0x90),
}
NEVER = frozenset((0xC0, 0xC1, *range(0xF5, 0x100)))
NO_LEAD = 0


class WholeCharacters:
    """Which tokens may come, by the last byte of the text before them.

    All else about UTF-8 (how many bytes follow a first one) is left to the grammar.
    """

    def __init__(self, vocabulary: TokenVocabulary) -> None:
        size, usable = vocabulary.vocab_size, vocabulary.usable_ids
        self._last_bytes = bytes(token[-1] if token else NO_LEAD for token in vocabulary.tokens)
        inside = [id for id in usable if _is_whole(vocabulary.tokens[id])]
        self._anywhere = row_of(inside, size)
        self._after: dict[int, torch.Tensor] = {}
        for lead, allowed in SECOND_BYTES.items():
            fits = [id for id in inside if _may_follow(vocabulary.tokens[id], allowed)]
            self._after[lead] = row_of(fits, size)

    def last_byte(self, token: int) -> int:
        return self._last_bytes[token]

    def row(self, last_byte: int) -> "torch.Tensor":
        """[vocab / 32]: what may follow a text that ends with this byte; the ends are in it."""
        return self._after.get(last_byte, self._anywhere)


def _may_follow(token: bytes, allowed: Sequence[int]) -> bool:
    return not token or token[0] in allowed


def _is_whole(token: bytes) -> bool:
    if token.isascii():
        return True
    return NEVER.isdisjoint(token) and all(
        second in SECOND_BYTES.get(first, (second,))
        for first, second in zip(token, token[1:], strict=False)
    )
