"""Turns progress of requests into the news of one step."""

from sglang.srt.core.messages import FinishReason, LogprobRows, RequestOutput
from sglang.srt.core.request import Req
from sglang.srt.mem_cache.request_memory import wants_prompt_logprobs


class OutputAssembler:
    """Collects the outputs of a step. An unstreamed answer is one output, at its end."""

    def __init__(self, stream_interval: int) -> None:
        self._stream_interval = stream_interval
        self._outputs: list[RequestOutput] = []

    def progressed(self, req: Req) -> None:
        """Called after each new token, and at the end."""
        if req.finished or self._is_due(req):
            self._outputs.append(_news(req))

    def refused(self, rid: str, prompt_len: int, reason: FinishReason) -> None:
        self._outputs.append(RequestOutput(rid=rid, prompt_tokens=prompt_len, finish=reason))

    @property
    def has_news(self) -> bool:
        return bool(self._outputs)

    def take(self) -> list[RequestOutput]:
        outputs, self._outputs = self._outputs, []
        return outputs

    def _is_due(self, req: Req) -> bool:
        if not req.stream:
            return False
        interval = req.sampling_params.stream_interval or self._stream_interval
        return not req.num_sent_tokens or len(req.output_ids) - req.num_sent_tokens >= interval


def _news(req: Req) -> RequestOutput:
    first = req.num_sent_tokens
    output = RequestOutput(
        rid=req.rid,
        token_ids=req.output_ids[first:],
        prompt_tokens=len(req.origin_input_ids),
        completion_tokens=len(req.output_ids),
        cached_tokens=req.cached_tokens,
        cached_tokens_details=req.cached_tokens_details,
        num_retractions=req.num_retractions,
        finish=req.finished_reason,
        times=req.times if req.finished or not first else None,
        output_logprobs=_rows_from(req.output_logprobs, first) if req.return_logprob else None,
        input_logprobs=req.input_logprobs,
        embedding=req.embedding,
    )
    req.num_sent_tokens, req.input_logprobs = len(req.output_ids), None
    return output


def add_input_logprobs(req: Req, rows: LogprobRows | None) -> None:
    """Appends the prompt positions of a pass. Called before the pass's token is appended."""
    if not wants_prompt_logprobs(req):
        return
    if req.input_logprobs is None:
        req.input_logprobs = _unpredicted_row(req)
    if rows is not None:
        _extend(req.input_logprobs, rows)


def add_output_logprobs(req: Req, rows: LogprobRows | None) -> None:
    """Appends the position of the token that was just appended."""
    if rows is not None and req.return_logprob:
        _extend(req.output_logprobs, rows)


def _unpredicted_row(req: Req) -> LogprobRows:
    """The first reported prompt token: its predecessor may be cached, so nothing predicts it."""
    return LogprobRows(
        logprobs=[None],
        token_ids=[req.origin_input_ids[req.logprob_start_len]],
        top=[None] if req.top_logprobs_num else [],
        chosen=[None] if req.token_ids_logprob else [],
    )


def _extend(rows: LogprobRows, more: LogprobRows) -> None:
    rows.logprobs.extend(more.logprobs)
    rows.token_ids.extend(more.token_ids)
    rows.top.extend(more.top)
    rows.chosen.extend(more.chosen)


def _rows_from(rows: LogprobRows, first: int) -> LogprobRows:
    return LogprobRows(
        logprobs=rows.logprobs[first:],
        token_ids=rows.token_ids[first:],
        top=rows.top[first:],
        chosen=rows.chosen[first:],
    )
