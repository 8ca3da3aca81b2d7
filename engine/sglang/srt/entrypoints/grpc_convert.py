"""Conversions between gRPC messages and the engine's own: the only place that knows both."""

import time
from collections.abc import Iterable
from typing import Any

from sglang.srt.core.messages import (
    GenerateInput,
    LogprobRows,
    RequestOutput,
    SessionRef,
    TopRow,
)
from sglang.srt.core.sampling_params import SamplingParams
from sglang.srt.entrypoints import wire
from sglang.srt.entrypoints.answer_inputs import InvalidRequest, answer_inputs

__all__ = ["InvalidRequest", "chunk", "complete", "generate_inputs", "sampling_params"]

MAX_WHOLE = 2**53  # up to here every whole number is a double

# ------------------------------------------------------------------ requests


def generate_inputs(
    request: Any, *, vocab_size: int, context_len: int, deadline: float | None
) -> list[GenerateInput]:
    """One input per answer of a `GenerateRequest`. Raises InvalidRequest.

    `deadline` is on the clock of time.monotonic().
    """
    _refuse_what_is_not_served(request)
    wish = GenerateInput(
        rid=request.request_id,
        input_ids=list(request.tokenized.input_ids),
        sampling=sampling_params(request.sampling_params),
        return_logprob=request.return_logprob,
        logprob_start_len=request.logprob_start_len,
        top_logprobs_num=request.top_logprobs_num,
        token_ids_logprob=list(request.token_ids_logprob),
        stream=request.stream,
        priority=request.priority if request.HasField("priority") else None,
        extra_key=_cache_namespace(request),
        lora_name=request.lora_id or None,
        routing_key=request.routing_key if request.HasField("routing_key") else None,
        session=_session(request),
        custom_logit_processor=request.custom_logit_processor or None,
        require_reasoning=request.require_reasoning,
        deadline=deadline,
    )
    return answer_inputs(
        wish, vocab_size=vocab_size, context_len=context_len, prompt_field="tokenized.input_ids"
    )


def sampling_params(message: Any) -> SamplingParams:
    """The engine's form. Proto zeros that are no meaningful values become the defaults."""
    constraint = message.WhichOneof("constraint")
    constraint_text = getattr(message, constraint) if constraint else None
    names = {"ebnf_grammar": "ebnf"}
    return SamplingParams(
        max_new_tokens=message.max_new_tokens if message.HasField("max_new_tokens") else None,
        min_new_tokens=message.min_new_tokens,
        stop=list(message.stop),
        stop_token_ids=list(message.stop_token_ids),
        stop_regex=list(message.stop_regex),
        temperature=message.temperature,
        top_p=message.top_p or 1.0,
        top_k=message.top_k or -1,
        min_p=message.min_p,
        frequency_penalty=message.frequency_penalty,
        presence_penalty=message.presence_penalty,
        repetition_penalty=message.repetition_penalty or 1.0,
        n=message.n or 1,
        ignore_eos=message.ignore_eos,
        skip_special_tokens=message.skip_special_tokens,
        spaces_between_special_tokens=message.spaces_between_special_tokens,
        no_stop_trim=message.no_stop_trim,
        logit_bias=_logit_bias(message.logit_bias),
        sampling_seed=message.sampling_seed if message.HasField("sampling_seed") else None,
        stream_interval=_stream_interval(message),
        custom_params=_custom_params(message),
        **({names.get(constraint, constraint): constraint_text} if constraint_text else {}),
    )


def _refuse_what_is_not_served(request: Any) -> None:
    if not request.request_id:
        raise InvalidRequest("request_id must not be empty")
    unserved = {
        "mm_inputs": "this model takes text only",
        "disaggregated_params": "this worker prefills and decodes by itself",
    }
    for field, reason in unserved.items():
        if request.HasField(field) and getattr(request, field).ByteSize():
            raise InvalidRequest(f"{field} must be absent: {reason}")
    empty_only = {
        "input_embeds": "prompts are token ids",
        "return_hidden_states": "hidden states are not served",
    }
    for field, reason in empty_only.items():
        if getattr(request, field):
            raise InvalidRequest(f"{field} must be absent: {reason}")
    rank = request.data_parallel_rank
    if rank != 0:
        raise InvalidRequest(
            f"data_parallel_rank must be 0 or absent, this is one rank; got {rank}"
        )


def _logit_bias(biases: Any) -> dict[int, float]:
    try:
        return {int(token_id): bias for token_id, bias in biases.items()}
    except ValueError as error:
        raise InvalidRequest(f"sampling_params.logit_bias: keys are token ids: {error}") from None


def _stream_interval(message: Any) -> int | None:
    if not message.HasField("stream_interval"):
        return None
    interval = int(message.stream_interval)
    if interval < 1:
        raise InvalidRequest(f"sampling_params.stream_interval must be at least 1, got {interval}")
    return interval


def _custom_params(message: Any) -> dict[str, Any] | None:
    if not message.HasField("custom_params"):
        return None
    return {name: _plain(value) for name, value in message.custom_params.fields.items()}


def _plain(value: Any) -> Any:
    """The wire knows doubles only: whole numbers become integers again, as far as all are there."""
    kind = value.WhichOneof("kind")
    if kind is None or kind == "null_value":
        return None
    if kind == "list_value":
        return [_plain(item) for item in value.list_value.values]
    if kind == "struct_value":
        return {name: _plain(item) for name, item in value.struct_value.fields.items()}
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() and abs(number) <= MAX_WHOLE else number
    return getattr(value, kind)


def _session(request: Any) -> SessionRef | None:
    if not request.HasField("session"):
        return None
    session = request.session
    if not session.id:
        raise InvalidRequest("session.id must not be empty; /open_session tells it")
    return SessionRef(
        id=session.id,
        rid=session.rid if session.HasField("rid") else None,
        offset=session.offset if session.HasField("offset") else None,
        replace=session.replace,
        drop_previous_output=session.drop_previous_output,
    )


def _cache_namespace(request: Any) -> str | None:
    """`extra_key` with `cache_salt` appended; None when neither is set."""
    parts = [
        getattr(request, name) for name in ("extra_key", "cache_salt") if request.HasField(name)
    ]
    return "".join(parts) if parts else None


# ------------------------------------------------------------------ answers


def chunk(request_id: str, index: int, output: RequestOutput, *, opens: bool) -> Any:
    """The new tokens of one answer as a `GenerateResponse`; `opens`: it is the answer's first."""
    response = wire.scheduler("GenerateResponse")(request_id=request_id)
    body = response.chunk
    body.index = index
    body.token_ids.extend(output.token_ids)
    _set_counts(body, output)
    if opens:
        _set_origin(body, output)
    if output.output_logprobs is not None:
        _fill_output_rows(body.output_logprobs, output.output_logprobs)
    if output.input_logprobs is not None:
        _fill_input_rows(body.input_logprobs, output.input_logprobs)
    body.SetInParent()
    return response


def complete(request_id: str, index: int, output: RequestOutput) -> Any:
    """The end of one answer; `output` holds all of its ids, and all rows when not streaming."""
    assert output.finish is not None, "an answer is complete when it is finished"
    finish = output.finish
    response = wire.scheduler("GenerateResponse")(request_id=request_id)
    body = response.complete
    body.index = index
    body.output_ids.extend(output.token_ids)
    body.finish_reason = finish.type
    body.num_retractions = output.num_retractions
    _set_counts(body, output)
    _set_origin(body, output)
    if isinstance(finish.matched, int):
        body.matched_token_id = finish.matched
    elif finish.matched is not None:
        body.matched_stop_str = finish.matched
    if finish.type == "abort":
        body.abort_message = finish.message or ""
        body.abort_status_code = finish.status_code or 0
    if output.output_logprobs is not None:
        _fill_output_rows(body.output_logprobs, output.output_logprobs)
    if output.input_logprobs is not None:
        _fill_input_rows(body.input_logprobs, output.input_logprobs)
    return response


def _set_counts(body: Any, output: RequestOutput) -> None:
    body.prompt_tokens = output.prompt_tokens
    body.completion_tokens = output.completion_tokens
    body.cached_tokens = output.cached_tokens


def _set_origin(body: Any, output: RequestOutput) -> None:
    """Where the cached tokens came from, and when the request passed its stages."""
    if output.cached_tokens_details is not None:
        body.cached_tokens_details.SetInParent()  # all zeros say something too
        for tier, count in output.cached_tokens_details.items():
            setattr(body.cached_tokens_details, tier, count)
    times = output.times
    if times is None:
        return
    start = monotonic_start()
    body.times.received = start + times.received
    if times.compiled is not None:
        body.times.compiled = start + times.compiled
    if times.admissions:
        body.times.admitted = start + times.admissions[0]
    if times.prefilled is not None:
        body.times.prefilled = start + times.prefilled


def monotonic_start() -> float:
    """When time.monotonic() was 0, in seconds since the epoch."""
    return time.time() - time.monotonic()


def _fill_output_rows(body: Any, rows: LogprobRows) -> None:
    body.token_logprobs.extend(float("nan") if v is None else v for v in rows.logprobs)
    body.token_ids.extend(rows.token_ids)
    _fill_top(body.top_logprobs, rows.top)
    _fill_top(body.token_ids_logprobs, rows.chosen)


def _fill_input_rows(body: Any, rows: LogprobRows) -> None:
    for value in rows.logprobs:
        row = body.token_logprobs.add()
        if value is not None:
            row.value = value
    body.token_ids.extend(rows.token_ids)
    _fill_top(body.top_logprobs, rows.top)
    _fill_top(body.token_ids_logprobs, rows.chosen)


def _fill_top(target: Any, rows: Iterable[TopRow | None]) -> None:
    for row in rows:
        added = target.add()
        if row is not None:
            added.values.extend(row.logprobs)
            added.token_ids.extend(row.token_ids)
