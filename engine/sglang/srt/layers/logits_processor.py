"""From hidden states to logits, for the positions that need them."""

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import nn

from sglang.srt.core.batch import ForwardBatch


@dataclass
class LogitsOutput:
    """Result of a pass: scores of each request's next token.

    `prompt_hidden_states` has the rows of all prompt positions whose logprobs are wanted, request
    after request; their logits are computed piecewise, as they can exceed the memory.
    """

    next_token_logits: torch.Tensor  # [batch_size, vocab]
    prompt_hidden_states: torch.Tensor | None = None  # [num_prompt_rows, hidden]


class LogitsProcessor(nn.Module):
    """Picks rows and scores them with the head."""

    def forward(
        self, hidden_states: torch.Tensor, lm_head: nn.Module, forward_batch: ForwardBatch
    ) -> LogitsOutput:
        # hidden_states: [num_tokens, hidden], normalized
        if forward_batch.forward_mode.is_decode():
            return LogitsOutput(lm_head(hidden_states))
        ends = list(accumulate(forward_batch.extend_seq_lens))
        last = torch.tensor([end - 1 for end in ends], device=hidden_states.device)
        rows = _prompt_rows(forward_batch, ends)
        prompt = hidden_states[rows] if rows is not None else None
        return LogitsOutput(lm_head(hidden_states[last]), prompt)


def _prompt_rows(forward_batch: ForwardBatch, ends: list[int]) -> torch.Tensor | None:
    rows: list[int] = []
    starts = forward_batch.extend_logprob_start_lens
    for end, length, start in zip(ends, forward_batch.extend_seq_lens, starts, strict=False):
        rows.extend(range(end - length + start, end))
    if not rows:
        return None
    return torch.tensor(rows, device=forward_batch.input_ids.device)
