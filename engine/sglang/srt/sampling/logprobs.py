"""Logprob rows of positions: the token itself, the best ones, and the ones asked for by id."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from sglang.srt.core.batch import ForwardBatch
from sglang.srt.core.messages import LogprobRows, TopRow
from sglang.srt.core.request import Req
from sglang.srt.sampling.ranks import stable_topk

# Prompt positions scored at once: bounds the float32 logits to 100 MB at a vocabulary of 200,000.
_ROWS_AT_ONCE = 128


@dataclass(frozen=True)
class _Span:
    """Consecutive positions of one request; `token_ids` are the tokens that came there."""

    req: Req
    first_row: int
    token_ids: list[int]


def output_logprobs(
    logits: torch.Tensor, reqs: Sequence[Req], token_ids: list[int], *, stable: bool = False
) -> list[LogprobRows | None]:
    """One position per request that wants it; `logits` are the model's own, not yet adjusted.

    `stable`: among equal alternatives the lower id comes first, whatever others ask for.
    """
    # logits: [len(reqs), vocab] float32
    spans = [_Span(req, row, [token_ids[row]]) for row, req in enumerate(reqs)]
    return list(_rows_of(logits, spans, stable))


def prompt_logprobs(
    compute_logits: Callable[[torch.Tensor], torch.Tensor],
    hidden_states: torch.Tensor | None,
    reqs: Sequence[Req],
    forward_batch: ForwardBatch,
    *,
    stable: bool = False,
) -> list[LogprobRows | None]:
    """Per request the prompt positions of this pass; None where there are none.

    `hidden_states` has the rows that `LogitsProcessor` picked.
    """
    # hidden_states: [num_prompt_rows, hidden]
    results: list[LogprobRows | None] = [None] * len(reqs)
    if hidden_states is None:
        return results
    first_row = 0
    lengths = zip(
        forward_batch.extend_prefix_lens,
        forward_batch.extend_seq_lens,
        forward_batch.extend_logprob_start_lens,
        strict=True,
    )
    for index, (req, (prefix, new, start)) in enumerate(zip(reqs, lengths, strict=True)):
        # The successor of the prompt's last token is output, not prompt.
        successors = req.origin_input_ids[prefix + start + 1 : prefix + new + 1]
        if new > start and successors:
            results[index] = _score_piecewise(
                compute_logits, hidden_states, _Span(req, first_row, successors), stable
            )
        first_row += new - start
    return results


def _score_piecewise(
    compute_logits: Callable[[torch.Tensor], torch.Tensor],
    hidden_states: torch.Tensor,
    span: _Span,
    stable: bool,
) -> LogprobRows:
    total = LogprobRows()
    for done in range(0, len(span.token_ids), _ROWS_AT_ONCE):
        token_ids = span.token_ids[done : done + _ROWS_AT_ONCE]
        first_row = span.first_row + done
        logits = compute_logits(hidden_states[first_row : first_row + len(token_ids)]).float()
        part = _rows_of(logits, [_Span(span.req, 0, token_ids)], stable)[0]
        total.logprobs += part.logprobs
        total.token_ids += part.token_ids
        total.top += part.top
        total.chosen += part.chosen
    return total


def _rows_of(logits: torch.Tensor, spans: list[_Span], stable: bool) -> list[LogprobRows]:
    # logits: [num_rows, vocab] float32; every row belongs to one span, in order
    # NOTE: logsumexp would sum a row in two threads when it is alone, with other last bits.
    logprobs = logits.log_softmax(-1)
    ids = torch.tensor([t for span in spans for t in span.token_ids], device=logits.device)
    picked = logprobs.gather(1, ids.unsqueeze(1)).squeeze(1).tolist()
    most = max(span.req.top_logprobs_num for span in spans)
    best: tuple[list[list[float]], list[list[int]]] = ([], [])
    if most:
        count = min(most, logits.shape[1])
        ranked = stable_topk(logits, count) if stable else logits.topk(count, dim=-1)
        best = (logprobs.gather(1, ranked[1]).tolist(), ranked[1].tolist())
    results = []
    for span in spans:
        rows = range(span.first_row, span.first_row + len(span.token_ids))
        result = LogprobRows(
            logprobs=picked[span.first_row : rows.stop], token_ids=list(span.token_ids)
        )
        if count := span.req.top_logprobs_num:
            result.top = [TopRow(best[0][row][:count], best[1][row][:count]) for row in rows]
        if wanted := span.req.token_ids_logprob:
            chosen = logprobs[rows.start : rows.stop, wanted].tolist()
            result.chosen = [TopRow(values, list(wanted)) for values in chosen]
        results.append(result)
    return results
