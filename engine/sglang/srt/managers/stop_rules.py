"""When an answer ends: checked after every token, in the documented order."""

from collections.abc import Callable
from typing import Any, Protocol

from sglang.srt.core.messages import FinishReason
from sglang.srt.core.request import Req
from sglang.srt.core.sampling_params import SamplingParams
from sglang.srt.managers.admission import Refused


class StopText(Protocol):
    """Follows the text of one answer."""

    def push(self, token_id: int, watch: bool) -> str | None:
        """Takes the next token; with `watch`, returns the stop string that it completes.

        ValueError: the tokenizer does not know the token.
        """


StopTextFactory = Callable[[SamplingParams], StopText]


class StopRules:
    """Decides about one request at a time; only requests with stop strings need text."""

    def __init__(self, vocab_size: int, make_stop_text: StopTextFactory) -> None:
        self._vocab_size = vocab_size
        self._make_stop_text = make_stop_text

    def prepare(self, req: Req) -> None:
        """Called at admission. Refused: the stop strings cannot be followed, and why."""
        params = req.sampling_params
        if not (params.stop or params.stop_regex):
            return
        try:
            req.text_state = self._make_stop_text(params)
        except ValueError as error:
            raise Refused(f"stop or stop_regex cannot be used: {error}") from error

    def append(self, req: Req, token_id: int) -> None:
        """Adds the token to the answer and sets `finished_reason` if that ends it."""
        if not 0 <= token_id < self._vocab_size:
            req.finished_reason = FinishReason(
                type="abort",
                message=f"The model chose token {token_id}, outside its vocabulary "
                f"0 … {self._vocab_size - 1}; its logits are not numbers.",
                status_code=500,
            )
            return
        req.output_ids.append(token_id)
        req.finished_reason = (
            self._text_ends(req, token_id) or self._token_ends(req, token_id) or length_ends(req)
        )

    def _text_ends(self, req: Req, token_id: int) -> FinishReason | None:
        stop_text: StopText | None = req.text_state
        if stop_text is None:
            return None
        try:
            matched = stop_text.push(token_id, watch=may_stop(req))
        except ValueError as error:
            message = f"The text of the answer cannot be followed: {error}"
            return FinishReason(type="abort", message=message, status_code=500)
        return None if matched is None else FinishReason(type="stop", matched=matched)

    def _token_ends(self, req: Req, token_id: int) -> FinishReason | None:
        params = req.sampling_params
        if params.ignore_eos or not may_stop(req):
            return None
        if token_id in req.eos_token_ids or token_id in params.stop_token_ids:
            return FinishReason(type="stop", matched=token_id)
        return None


def may_stop(req: Req) -> bool:
    return len(req.output_ids) >= req.sampling_params.min_new_tokens


def length_ends(req: Req) -> FinishReason | None:
    """Also of a request that wants no token at all, after its prefill."""
    if len(req.output_ids) < req.max_new_tokens:
        return None
    return FinishReason(type="length")


class DecodedStopText:
    """Stop strings found by the gateway's own decoder and matcher."""

    def __init__(self, decoder: Any, matcher: Any) -> None:
        self._decoder = decoder
        self._matcher = matcher

    def push(self, token_id: int, watch: bool) -> str | None:
        text = self._decoder.push(token_id)
        if not watch:
            return None
        matched: str | None = self._matcher.push(text).matched
        return matched


def stop_text_factory(tokenizer_folder: str) -> StopTextFactory:
    """Reads the tokenizer when the first request with a stop string comes."""
    tokenizers: list[Any] = []

    def make(params: SamplingParams) -> StopText:
        from sglang_router.text import StopMatcher, Tokenizer

        if not tokenizers:
            tokenizers.append(Tokenizer(tokenizer_folder))
        decoder = tokenizers[0].decoder(params.skip_special_tokens)
        return DecodedStopText(
            decoder, StopMatcher(params.stop, params.stop_regex, params.no_stop_trim)
        )

    return make
