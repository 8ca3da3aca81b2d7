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
        table = _biases_of_bytes(logits.dtype, logits.device)
        octets = vocab_mask.contiguous().view(torch.uint8).flatten().to(torch.int32)
        biases = table.index_select(0, octets).view(vocab_mask.shape[0], -1)[:, :vocab_size]
        num_covered = biases.shape[1]
        logits[:, :num_covered].add_(biases)
        logits[:, num_covered:] = float("-inf")


@functools.cache
def _biases_of_bytes(dtype: "torch.dtype", device: "torch.device") -> "torch.Tensor":
    """[256, 8]: of the tokens that a byte stands for, lowest bit first, 0 where they are allowed
    and -inf where not. Adding them takes a tenth of the time of filling by booleans on a CPU.
    """
    import torch

    bits = (torch.arange(256).unsqueeze(1) >> torch.arange(8)) & 1
    biases = torch.zeros(256, 8, dtype=dtype).masked_fill(bits == 0, float("-inf"))
    return biases.to(device)


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
