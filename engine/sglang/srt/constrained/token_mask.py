"""Masks of one bit per token, 32 tokens in an int32 word: what both built-in backends fill."""

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from sglang.srt.constrained.base_grammar_backend import BaseGrammarObject

if TYPE_CHECKING:
    import torch

BITS = 32  # tokens of a word


class BitmaskGrammar(BaseGrammarObject):
    """Masks are filled on the CPU and applied wherever the logits are."""

    def allocate_vocab_mask(self, vocab_size: int, batch_size: int, device: Any) -> "torch.Tensor":
        import torch

        num_words = -(-vocab_size // BITS)
        is_pinned = torch.device(device).type == "cuda"
        return torch.full((batch_size, num_words), -1, dtype=torch.int32, pin_memory=is_pinned)

    @staticmethod
    def reset_vocab_mask(vocab_mask: "torch.Tensor") -> None:
        vocab_mask.fill_(-1)

    @staticmethod
    def move_vocab_mask(vocab_mask: "torch.Tensor", device: Any) -> "torch.Tensor":
        return vocab_mask.to(device, non_blocking=True)

    @staticmethod
    def apply_vocab_mask(logits: "torch.Tensor", vocab_mask: "torch.Tensor") -> None:
        # logits: [batch_size, vocab], vocab_mask: [batch_size, vocab / 32]
        import torch

        vocab_size = logits.shape[-1]
        table = _bits_of_bytes(str(vocab_mask.device))
        octets = vocab_mask.contiguous().view(torch.uint8).to(torch.int32)
        bits = table.index_select(0, octets.flatten()).view(torch.bool)
        allowed = bits.view(octets.shape[0], -1)[:, :vocab_size]
        num_covered = allowed.shape[1]
        logits[:, :num_covered].masked_fill_(~allowed, float("-inf"))
        logits[:, num_covered:] = float("-inf")


@functools.cache
def _bits_of_bytes(device: str) -> "torch.Tensor":
    """The eight booleans of each byte, lowest bit first, packed into one int64."""
    import torch

    values = torch.arange(256).unsqueeze(1)  # [256, 1]
    bits = (values >> torch.arange(8)) & 1
    return bits.to(torch.bool).view(torch.int64).flatten().to(device)


def own_row(vocab_mask: "torch.Tensor", idx: int, num_words: int) -> "torch.Tensor":
    """The words of row `idx` that a vocabulary of `num_words` words fills; the rest is cleared."""
    row = vocab_mask[idx]
    if row.shape[0] > num_words:
        row[num_words:] = 0
        return row[:num_words]
    if row.shape[0] < num_words:
        raise ValueError(
            f"a mask of {row.shape[0] * BITS} tokens is too short for a vocabulary of "
            f"{num_words * BITS}"
        )
    return row


def row_of(token_ids: Iterable[int], vocab_size: int) -> "torch.Tensor":
    """A row that allows these tokens only."""
    import torch

    words = [0] * -(-vocab_size // BITS)
    for id in token_ids:
        words[id // BITS] |= 1 << id % BITS
    return torch.tensor(words, dtype=torch.int64).to(torch.int32)  # [vocab / 32]
