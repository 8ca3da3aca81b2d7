"""From hidden states to logits, for the positions that need them."""

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import nn

from sglang.srt.core.batch import ForwardBatch


@dataclass
class LogitsOutput:
    """Result of a pass: scores of each request's next token, or of a model that embeds its vectors.

    `prompt_hidden_states` has the rows of all prompt positions whose logprobs are wanted, request
    after request; their logits are computed piecewise, as they can exceed the memory.
    """

    next_token_logits: torch.Tensor | None  # [batch_size, vocab]
    prompt_hidden_states: torch.Tensor | None = None  # [num_prompt_rows, hidden]
    embeddings: torch.Tensor | None = None  # [batch_size, hidden] float32


class LogitsProcessor(nn.Module):
    """Picks rows and scores them with the head."""

    def forward(
        self, hidden_states: torch.Tensor, lm_head: nn.Module, forward_batch: ForwardBatch
    ) -> LogitsOutput:
        # hidden_states: [num_tokens, hidden], normalized
        if forward_batch.forward_mode.is_decode():
            return LogitsOutput(lm_head(hidden_states))
        rows = _prompt_rows(forward_batch)
        prompt = hidden_states[rows] if rows is not None else None
        return LogitsOutput(lm_head(hidden_states[last_rows(forward_batch)]), prompt)


def last_rows(forward_batch: ForwardBatch) -> torch.Tensor:
    """The row of each request's last new token in an extend pass: [batch_size] int64."""
    ends = accumulate(forward_batch.extend_seq_lens)
    return torch.tensor([end - 1 for end in ends], device=forward_batch.input_ids.device)


def _prompt_rows(forward_batch: ForwardBatch) -> torch.Tensor | None:
    rows: list[int] = []
    ends = accumulate(forward_batch.extend_seq_lens)
    starts = forward_batch.extend_logprob_start_lens
    for end, length, start in zip(ends, forward_batch.extend_seq_lens, starts, strict=False):
        rows.extend(range(end - length + start, end))
    if not rows:
        return None
    return torch.tensor(rows, device=forward_batch.input_ids.device)
