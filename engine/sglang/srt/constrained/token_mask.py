"""Masks of one bit per token, 32 tokens in an int32 word: what both built-in backends fill."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sglang.srt.constrained.base_grammar_backend import BaseGrammarObject, GrammarStats
from sglang.srt.constrained.vocabulary import TokenVocabulary
from sglang.srt.core.messages import ConstraintTooComplex

if TYPE_CHECKING:
    import torch

BITS = 32  # tokens of a word
ANSWER_SECONDS = 1.0  # of processor time that the masks of one answer may take
TOKEN_SECONDS = 0.02  # and for each of its tokens


@dataclass(frozen=True)
class TokenRows:
    """Sets of tokens, each as a row of a mask: [vocab / 32]."""

    end_ids: frozenset[int]
    ends: "torch.Tensor"

    @classmethod
    def of(cls, vocabulary: TokenVocabulary) -> "TokenRows":
        ends = row_of(vocabulary.end_ids, vocabulary.vocab_size)
        return cls(frozenset(vocabulary.end_ids), ends)


class Effort:
    """What the masks of one answer have taken: beyond it they would hold up all other answers."""

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._spent = 0.0
        self._num_tokens = 0

    @contextlib.contextmanager
    def measured(self, *, num_tokens: int = 0) -> Iterator[None]:
        begin = self._clock()
        try:
            yield
        finally:
            self._spent += self._clock() - begin
            self._num_tokens += num_tokens

    def check(self) -> None:
        """Raises ConstraintTooComplex."""
        allowed = ANSWER_SECONDS + self._num_tokens * TOKEN_SECONDS
        if self._spent > allowed:
            raise ConstraintTooComplex(
                f"its masks took {self._spent:.1f} s for {self._num_tokens} tokens, where "
                f"{allowed:.1f} s are allowed"
            )


class BitmaskGrammar(BaseGrammarObject):
    """How far one answer has come in a constraint that a library has compiled.

    End tokens are kept from the library. Masks are filled on the CPU and applied wherever the
    logits are.
    """

    def __init__(
        self, matcher: Any, rows: TokenRows, memory_bytes: int, grammar_stats: GrammarStats
    ) -> None:
        """`matcher` is the library's own state; all else is shared by copies."""
        super().__init__()
        self._matcher = matcher
        self.memory_bytes = memory_bytes
        self.grammar_stats: GrammarStats = grammar_stats
        self._rows = rows
        self._num_ends = 0  # end tokens of the answer, after which nothing else may come
        self.effort = Effort()

    def accept_token(self, token: int) -> None:
        if token in self._rows.end_ids:
            if not self._num_ends and not self._may_end():
                raise ValueError(f"the answer is not complete where token {token} ends it")
            self._num_ends += 1
        elif self._num_ends:
            raise ValueError(f"token {token} comes after the end of the answer")
        else:
            with self.effort.measured(num_tokens=1):
                self._accept(token)
            self.effort.check()
        self.current_token = token

    def rollback(self, k: int) -> None:
        num_ends = min(k, self._num_ends)
        if k > num_ends:
            self._rollback(k - num_ends)
        self._num_ends -= num_ends
        self.current_token = None

    def is_terminated(self) -> bool:
        if self._num_ends:
            return True
        with self.effort.measured():
            return self._is_exhausted()

    def copy(self) -> "BitmaskGrammar":
        stats = replace(self.grammar_stats, is_cache_hit=True, tree_traversal_time=[])
        copied = self._forked(stats)
        copied._num_ends = self._num_ends
        return copied

    def fill_vocab_mask(self, vocab_mask: "torch.Tensor", idx: int) -> None:
        row = own_row(vocab_mask, idx, self._rows.ends.shape[0])
        if self._num_ends:
            row.copy_(self._rows.ends)
        else:
            with self.effort.measured():
                self._fill(row)
            self.effort.check()

    def _accept(self, token: int) -> None:
        """Of a token that ends nothing; raises ValueError for one that is not allowed."""
        raise NotImplementedError

    def _rollback(self, k: int) -> None:
        raise NotImplementedError

    def _may_end(self) -> bool:
        """Whether the answer is complete, though it may go on."""
        raise NotImplementedError

    def _is_exhausted(self) -> bool:
        """Whether the answer is complete and cannot go on."""
        raise NotImplementedError

    def _forked(self, stats: GrammarStats) -> "BitmaskGrammar":
        """The same state with a matcher of its own, for another answer."""
        raise NotImplementedError

    def _fill(self, row: "torch.Tensor") -> None:
        # row: [vocab / 32]
        raise NotImplementedError

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
