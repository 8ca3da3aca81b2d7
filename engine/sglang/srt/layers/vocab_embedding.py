"""The table of token vectors, and the head that scores tokens against hidden states."""

import torch
import torch.nn.functional as F
from torch import nn

from sglang.srt.layers.linear import Linear, new_parameter


class VocabEmbedding(nn.Module):
    """Rows of the table by token id. The table may have padding rows above the vocabulary."""

    def __init__(self, num_rows: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = new_parameter(torch.empty(num_rows, hidden_size))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        # input_ids: [num_tokens] -> [num_tokens, hidden]
        return F.embedding(input_ids, self.weight)


class LMHead(Linear):
    """Scores of the first `vocab_size` rows; padding rows are never computed, so never sampled.

    With a cap, scores become cap * tanh(score / cap).
    """

    def __init__(
        self, hidden_size: int, num_rows: int, vocab_size: int, logit_cap: float = 0.0
    ) -> None:
        super().__init__(hidden_size, num_rows)
        self.vocab_size = vocab_size
        self.logit_cap = logit_cap
        self._is_tied = False

    def tie(self, embedding: VocabEmbedding) -> None:
        """Shares the embedding's table instead of having one."""
        self.weight = embedding.weight
        self._is_tied = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = super().forward(x)
        if self.logit_cap > 0:
            scores = torch.tanh(scores / self.logit_cap) * self.logit_cap
        return scores

    def drop_weight(self) -> None:
        if not self._is_tied:
            super().drop_weight()

    def rows_in_use(self) -> torch.Tensor:
        return self.weight[: self.vocab_size]
