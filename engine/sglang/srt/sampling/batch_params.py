"""The sampling parameters of a batch as tensors, made anew only when the batch changes."""

from collections.abc import Sequence

import torch

from sglang.srt.core.request import Req
from sglang.srt.core.sampling_params import SamplingParams
from sglang.srt.sampling.penalties import is_penalized


def needs_history(req: Req) -> bool:
    """Whether the sampler reads the answer so far: all tokens before the next must be known."""
    params = req.sampling_params
    return bool(
        is_penalized(params)
        or _is_held_open(req)
        or req.grammar is not None
        or req.logit_processor is not None
    )


def _is_held_open(req: Req) -> bool:
    params = req.sampling_params
    return not params.ignore_eos and len(req.output_ids) < params.min_new_tokens


class BatchParams:
    """What the sampler has to do for these requests, by row."""

    def __init__(self, reqs: Sequence[Req], vocab_size: int, device: torch.device) -> None:
        self.reqs = list(reqs)
        rows = range(len(reqs))
        params = [req.sampling_params for req in reqs]
        self.logprob_rows = [row for row in rows if reqs[row].return_logprob]
        self.penalized_rows = [row for row in rows if is_penalized(params[row])]
        self.min_length_rows = [
            row for row in rows if params[row].min_new_tokens and not params[row].ignore_eos
        ]
        self.processed_rows = [row for row in rows if reqs[row].logit_processor is not None]
        self.drawn_rows = [row for row in rows if not params[row].is_greedy]
        self.draw = DrawParams([params[row] for row in self.drawn_rows], vocab_size, device)
        self.bias = _bias(params, vocab_size, device)

    def describes(self, reqs: Sequence[Req]) -> bool:
        return self.reqs == list(reqs)  # requests are equal only to themselves


class DrawParams:
    """Temperature and filters of the rows that are drawn at random."""

    def __init__(
        self, params: Sequence[SamplingParams], vocab_size: int, device: torch.device
    ) -> None:
        def column(values: list[float]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device).unsqueeze(1)

        # Columns: [num_drawn, 1].
        self.temperatures = column([p.temperature for p in params])
        self.top_ps = column([p.top_p for p in params])
        self.min_ps = column([p.min_p for p in params])
        top_ks = [p.top_k if 0 < p.top_k < vocab_size else vocab_size for p in params]
        self.top_ks = torch.tensor(top_ks, device=device).unsqueeze(1)
        self.has_min_p = any(p.min_p > 0 for p in params)
        # Positions among the drawn rows: those that need their tokens ranked, and the others.
        self.ranked = [i for i, p in enumerate(params) if p.top_p < 1 or top_ks[i] < vocab_size]
        self.unranked = [i for i in range(len(params)) if i not in set(self.ranked)]
        # Enough ranks for every top_k; rows limited by top_p alone may need more.
        self.most_ranks = max((top_ks[i] for i in self.ranked if top_ks[i] < vocab_size), default=0)
        self.has_open_top_p = any(top_ks[i] == vocab_size for i in self.ranked)


def _bias(
    params: Sequence[SamplingParams], vocab_size: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Index into the flattened logits, and what to add there."""
    index: list[int] = []
    values: list[float] = []
    for row, row_params in enumerate(params):
        for token_id, value in row_params.logit_bias.items():
            if token_id < vocab_size:
                index.append(row * vocab_size + token_id)
                values.append(value)
    if not index:
        return None
    return torch.tensor(index, device=device), torch.tensor(values, device=device)
