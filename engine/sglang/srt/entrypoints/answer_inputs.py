"""From one checked wish to the scheduler's inputs, one per answer, however the wish came here."""

from collections.abc import Iterable, Sequence

import msgspec

from sglang.srt.core.messages import GenerateInput
from sglang.srt.core.sampling_params import SamplingParams

MAX_ANSWERS = 128
# Alternatives times positions of one request; each takes about 100 bytes on its way.
MAX_ALTERNATIVES = 2_000_000
INT64_MASK = (1 << 63) - 1


class InvalidRequest(ValueError):
    """The request is wrong; the text names the field, what was given and what is allowed."""


def answer_inputs(
    wish: GenerateInput, *, vocab_size: int, context_len: int, prompt_field: str = "input_ids"
) -> list[GenerateInput]:
    """One input per answer, `sampling.n` of them, with canonical parameters. Raises InvalidRequest.

    `prompt_field` is what the caller's interface calls the prompt's token ids.
    """
    check_prompt(wish.input_ids, vocab_size, context_len, prompt_field)
    params = wish.sampling
    try:
        params.check(vocab_size)
    except ValueError as error:
        raise InvalidRequest(f"sampling_params.{error}") from None
    if params.n > MAX_ANSWERS:
        raise InvalidRequest(f"sampling_params.n must be at most {MAX_ANSWERS}, got {params.n}")
    params = params.normalized()
    _check_logprobs(wish, vocab_size)
    if wish.return_logprob:
        _check_alternatives(wish, params, context_len)
    return [
        msgspec.structs.replace(wish, rid=rid, sampling=answer_params, answer_index=index)
        for index, (rid, answer_params) in enumerate(_answers(wish.rid, params))
    ]


def embedding_input(
    rid: str,
    input_ids: list[int],
    *,
    vocab_size: int,
    context_len: int,
    prompt_field: str = "input_ids",
) -> GenerateInput:
    """The input that asks for a prompt's vector. Raises InvalidRequest."""
    check_prompt(input_ids, vocab_size, context_len, prompt_field)
    return GenerateInput(
        rid=rid,
        input_ids=input_ids,
        sampling=SamplingParams(max_new_tokens=0).normalized(),
        wants_embedding=True,
        stream=False,
    )


def answer_rid(request_id: str, index: int, n: int) -> str:
    """The scheduler's id of one answer."""
    return request_id if n == 1 else f"{request_id}#{index}"


def _answers(request_id: str, params: SamplingParams) -> Iterable[tuple[str, SamplingParams]]:
    for index in range(params.n):
        seed = params.sampling_seed
        if seed is not None:
            seed = (seed + index) & INT64_MASK if index else seed  # or all answers would be equal
        own = msgspec.structs.replace(params, n=1, sampling_seed=seed)
        yield answer_rid(request_id, index, params.n), own


def check_prompt(
    input_ids: Sequence[int], vocab_size: int, context_len: int, prompt_field: str = "input_ids"
) -> None:
    """Raises InvalidRequest when the model cannot take the prompt."""
    if not input_ids:
        raise InvalidRequest(f"{prompt_field} must hold at least one token id, got none")
    if len(input_ids) >= context_len:
        raise InvalidRequest(
            f"The input ({len(input_ids)} tokens) is longer than the model's context length "
            f"({context_len} tokens)."
        )
    for outermost in (min(input_ids), max(input_ids)):
        if not 0 <= outermost < vocab_size:
            raise InvalidRequest(
                f"{prompt_field} must be ids of the vocabulary, 0 … {vocab_size - 1}; "
                f"got {outermost}"
            )


def _check_logprobs(wish: GenerateInput, vocab_size: int) -> None:
    start, top, prompt_len = wish.logprob_start_len, wish.top_logprobs_num, len(wish.input_ids)
    if not -1 <= start <= prompt_len:
        raise InvalidRequest(
            f"logprob_start_len must be -1 (answer only) or a position of the prompt, "
            f"0 … {prompt_len}; got {start}"
        )
    if not 0 <= top <= vocab_size:
        raise InvalidRequest(f"top_logprobs_num must be in 0 … {vocab_size}, got {top}")
    for token_id in wish.token_ids_logprob:
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(
                f"token_ids_logprob must be ids of the vocabulary, 0 … {vocab_size - 1}; "
                f"got {token_id}"
            )


def _check_alternatives(wish: GenerateInput, params: SamplingParams, context_len: int) -> None:
    """Bounds the memory that the rows of all answers take."""
    prompt_len, start = len(wish.input_ids), wish.logprob_start_len
    room, wanted = context_len - prompt_len, params.max_new_tokens
    answer = room if wanted is None else min(wanted, room)
    positions = params.n * (answer + (prompt_len - start if start >= 0 else 0))
    chosen = len(wish.token_ids_logprob)
    alternatives = wish.top_logprobs_num + chosen
    if alternatives * positions > MAX_ALTERNATIVES:
        raise InvalidRequest(
            f"top_logprobs_num = {wish.top_logprobs_num} with {chosen} token_ids_logprob is "
            f"{alternatives} alternatives at {positions} positions, {alternatives * positions} in "
            f"all; at most {MAX_ALTERNATIVES} are allowed. Ask for fewer, raise logprob_start_len "
            "or lower max_new_tokens"
        )
