"""What a new request must satisfy; turns an accepted one into a `Req`."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from sglang.srt.core.adapter import Adapter
from sglang.srt.core.config import PriorityConfig
from sglang.srt.core.messages import FinishReason, GenerateInput, grammar_failed
from sglang.srt.core.request import Req
from sglang.srt.core.sampling_params import SamplingParams
from sglang.srt.sampling.custom_logit_processor import find_processor, is_registered

logger = logging.getLogger(__name__)
NO_PRIORITIES = PriorityConfig()


@dataclass(frozen=True)
class Limits:
    """What the model and its memory allow, in tokens."""

    context_len: int
    pool_len: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    # Why these parameters' constraint is refused at once. None: there is no grammar backend.
    why_refused: Callable[[SamplingParams], str | None] | None = None
    allows_uploaded_processors: bool = False
    is_embedding: bool = False  # the model answers with vectors, and with nothing else

    @property
    def max_req_input_len(self) -> int:
        """The longest prompt that leaves room for one token."""
        return min(self.context_len - 1, self.pool_len)


class Refused(Exception):
    """The request ends before it started."""

    def __init__(self, message: str, status_code: int = 400) -> None:
        super().__init__(message)
        self.reason = FinishReason(type="abort", message=message, status_code=status_code)


def admit(request: GenerateInput, limits: Limits, priority: PriorityConfig = NO_PRIORITIES) -> Req:
    """The request with a definite `max_new_tokens`, or Refused with the reason.

    The launcher has answered for the request's own mistakes (ids, ranges, the prompt's length
    against the context); what is refused here depends on the pool and on what this engine serves.
    """
    _assert_checked(request, limits)
    _check_kind(request, limits)
    _check_pool(len(request.input_ids), limits)
    _check_constraint(request.sampling, limits)
    _check_priority(request.priority, priority)
    prompt_len = len(request.input_ids)
    req = Req(
        rid=request.rid,
        origin_input_ids=request.input_ids,
        sampling_params=_with_length(request.sampling, prompt_len, limits),
        eos_token_ids=limits.eos_token_ids,
        return_logprob=request.return_logprob,
        logprob_start_len=request.logprob_start_len,
        top_logprobs_num=request.top_logprobs_num,
        token_ids_logprob=request.token_ids_logprob,
        wants_embedding=request.wants_embedding,
        stream=request.stream,
        priority=request.priority,
        extra_key=request.extra_key,
        adapter=_adapter(request),
        routing_key=request.routing_key,
        session_id=request.session.id if request.session is not None else None,
        require_reasoning=request.require_reasoning,
        deadline=request.deadline,
        answer_index=request.answer_index,
    )
    if request.custom_logit_processor:
        _attach_processor(req, request.custom_logit_processor, limits)
    return req


def _adapter(request: GenerateInput) -> Adapter | None:
    if request.lora_id is None:
        return None
    return Adapter(request.lora_id, request.lora_name or "")


def _attach_processor(req: Req, text: str, limits: Limits) -> None:
    try:
        req.logit_processor = find_processor(
            text, allows_uploaded=limits.allows_uploaded_processors
        )
    except ValueError as error:
        raise Refused(str(error)) from error
    req.has_uploaded_processor = not is_registered(text)
    req.logit_processor_params = {**(req.sampling_params.custom_params or {}), "__req__": req}


def _assert_checked(request: GenerateInput, limits: Limits) -> None:
    ids, start = request.input_ids, request.logprob_start_len
    assert 0 < len(ids) < limits.context_len, f"{request.rid}: a prompt of {len(ids)} tokens"
    assert min(ids) >= 0 and max(ids) < limits.vocab_size, f"{request.rid}: foreign token ids"
    assert -1 <= start <= len(ids), f"{request.rid}: logprob_start_len is {start}"


def _check_kind(request: GenerateInput, limits: Limits) -> None:
    if request.wants_embedding and not limits.is_embedding:
        raise Refused(
            "This engine generates text and gives no embeddings; start one with --is-embedding."
        )
    if limits.is_embedding and not request.wants_embedding:
        raise Refused(
            "This engine was started with --is-embedding and generates no text; ask it for "
            "embeddings, or start one without --is-embedding."
        )


def _check_pool(prompt_len: int, limits: Limits) -> None:
    if prompt_len > limits.pool_len:
        raise Refused(
            f"The input ({prompt_len} tokens) does not fit the KV pool ({limits.pool_len} tokens). "
            "Send a shorter one, or start the server with more memory for KV."
        )


def _check_constraint(params: SamplingParams, limits: Limits) -> None:
    if not params.constraints:
        return
    if limits.why_refused is None:
        raise Refused(
            f"Structured output ({params.constraints[0]}) is not served here: the engine was "
            "started without a grammar backend; --grammar-backend names one. Send the request "
            "without response_format, json_schema, regex, ebnf and structural_tag."
        )
    try:
        why = limits.why_refused(params)
    except Exception as error:
        logger.exception("The grammar backend failed to check a constraint")
        raise Refused(grammar_failed(error).message or "", status_code=500) from error
    if why is not None:
        raise Refused(why)


def _check_priority(given: int | None, priority: PriorityConfig) -> None:
    if given is not None and priority.refused_when_disabled and not priority.enabled:
        raise Refused(
            "priority scheduling is disabled: leave priority out, or start the engine with "
            "--enable-priority-scheduling",
            status_code=503,
        )


def _with_length(params: SamplingParams, prompt_len: int, limits: Limits) -> SamplingParams:
    left = limits.context_len - prompt_len
    wanted = params.max_new_tokens
    if wanted is not None and wanted > left:
        raise Refused(
            "Requested token count exceeds the model's maximum context length of "
            f"{limits.context_len} tokens: {prompt_len} of the prompt and {wanted} of the answer "
            f"are {prompt_len + wanted}. Ask for at most {left} new tokens, or shorten the prompt."
        )
    # The last token is never written to the pool, hence the one more.
    most = min(left if wanted is None else wanted, limits.pool_len - prompt_len + 1)
    least = min(params.min_new_tokens, most)
    return msgspec.structs.replace(params, max_new_tokens=most, min_new_tokens=least)
