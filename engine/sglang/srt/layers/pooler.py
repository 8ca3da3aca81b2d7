"""From hidden states to one vector per request, for models that embed."""

import torch
from torch import nn

from sglang.srt.core.batch import ForwardBatch
from sglang.srt.layers.logits_processor import LogitsOutput, last_rows


class Pooler(nn.Module):
    """In the place of the `LogitsProcessor`: the last token's state, of length 1, as float32."""

    def forward(
        self, hidden_states: torch.Tensor, lm_head: nn.Module, forward_batch: ForwardBatch
    ) -> LogitsOutput:
        # hidden_states: [num_tokens, hidden], normalized
        last = hidden_states[last_rows(forward_batch)].float()
        vectors = nn.functional.normalize(last, dim=-1)
        return LogitsOutput(next_token_logits=None, embeddings=vectors)
