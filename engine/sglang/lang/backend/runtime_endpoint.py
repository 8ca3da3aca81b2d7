"""Our own server, by its native API. Only text travels: no session, no cache key."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sglang.lang.backend.base_backend import BaseBackend
from sglang.lang.backend.http_client import EndpointError, HttpClient
from sglang.lang.chat_template import get_chat_template, get_chat_template_by_model_path
from sglang.lang.choices import (
    ChoiceScores,
    ChoicesDecision,
    ChoicesSamplingMethod,
    LogprobTriple,
)
from sglang.lang.global_config import global_config
from sglang.lang.ir import (
    REGEX_BOOL,
    REGEX_FLOAT,
    REGEX_INT,
    REGEX_STR,
    SglSamplingParams,
)
from sglang.lang.transcript import Transcript

if TYPE_CHECKING:
    import httpx

MAX_SELECT_TEMPERATURE = 1e-5
NUMBER_STOPS = (" ", "\n")
# dtype → what the answer must match, and the stop strings it adds.
_DTYPES: dict[str, tuple[str, tuple[str, ...]]] = {
    "int": (REGEX_INT, NUMBER_STOPS),
    "float": (REGEX_FLOAT, NUMBER_STOPS),
    "bool": (REGEX_BOOL, ()),
    "str": (REGEX_STR, ()),
}
# Beside `text`, what a request takes from the sampling parameters when it was set.
_REQUEST_FIELDS = (
    "return_logprob", "logprob_start_len", "top_logprobs_num", "return_text_in_logprobs",
)  # fmt: skip


class RuntimeEndpoint(BaseBackend):
    """A running server, by its address."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        verify: str | bool | None = None,
        chat_template_name: str | None = None,
        *,
        timeout: float = 600.0,
        transport: "httpx.BaseTransport | None" = None,
    ) -> None:
        """`timeout`: seconds that the server may be silent before a request fails."""
        super().__init__()
        self.base_url = base_url.rstrip("/")
        self._http = HttpClient(base_url, api_key, verify, timeout, transport)
        self.model_info: dict[str, Any] = _model_info(self._http)
        self.chat_template = (
            get_chat_template(chat_template_name)
            if chat_template_name
            else get_chat_template_by_model_path(self._names())
        )

    def get_model_name(self) -> str:
        return str(self.model_info["model_path"])

    def generate(
        self, s: Transcript, sampling_params: SglSamplingParams
    ) -> tuple[str | list[str], Any]:
        reply = self.ask(self._request(s, sampling_params))
        if isinstance(reply, list):
            return [one["text"] for one in reply], [one["meta_info"] for one in reply]
        return reply["text"], reply["meta_info"]

    def generate_stream(
        self, s: Transcript, sampling_params: SglSamplingParams
    ) -> Iterator[tuple[str, Any]]:
        yield from self.ask_stream(self._request(s, sampling_params))

    def ask(self, body: dict[str, Any]) -> Any:
        """The reply of `/generate`, a list for several answers. An aborted answer raises."""
        reply = self._http.post("/generate", body)
        for one in reply if isinstance(reply, list) else [reply]:
            _check_complete(one)
        return reply

    def ask_stream(self, body: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        """One answer of `/generate` in pieces, each with the meta information so far."""
        seen = 0
        for event in self._http.events("/generate", {**body, "stream": True}):
            _check_complete(event)
            piece = event["text"][seen:]
            seen += len(piece)
            yield piece, event["meta_info"]

    def select(
        self,
        s: Transcript,
        choices: Sequence[str],
        temperature: float,
        choices_method: ChoicesSamplingMethod,
    ) -> ChoicesDecision:
        if temperature > MAX_SELECT_TEMPERATURE:
            raise ValueError(
                f"select takes the likeliest choice: temperature must be at most "
                f"{MAX_SELECT_TEMPERATURE}, got {temperature}"
            )
        planted = self._plant(s.text_, s)
        start = max(planted["meta_info"]["prompt_tokens"] - 2, 0)
        body = {
            "text": [s.text_ + choice for choice in choices],
            "logprob_start_len": start,
            "return_text_in_logprobs": True,
        }
        if s.images_:
            body["image_data"] = [s.images_] * len(choices)
        scored = self._score(body)
        num_prompt_tokens = planted["meta_info"]["prompt_tokens"] - start
        tokens = [
            tokens_of_choice(one["meta_info"]["input_token_logprobs"], choice, num_prompt_tokens)
            for one, choice in zip(scored, choices, strict=True)
        ]
        scores = ChoiceScores(
            choices=choices,
            input_token_logprobs=tokens,
            output_token_logprobs=[
                one["meta_info"].get("output_token_logprobs", []) for one in scored
            ],
        )
        if choices_method.requires_unconditional_logprobs:
            alone = self._score(
                {
                    "input_ids": [[token[1] for token in one] for one in tokens],
                    "logprob_start_len": 0,
                }
            )
            scores = replace(
                scores,
                unconditional_token_logprobs=[
                    one["meta_info"]["input_token_logprobs"] for one in alone
                ],
            )
        return choices_method(scores)

    def cache_prefix(self, prefix_str: str) -> None:
        self._plant(prefix_str)

    def commit_lazy_operations(self, s: Transcript) -> None:
        """Plants the text in the cache. The server may drop it again: branches then compute it."""
        self._plant(s.text_, s)

    def flush_cache(self) -> None:
        self._http.post("/flush_cache", optional=True)

    def get_server_info(self) -> dict[str, Any]:
        info: dict[str, Any] = self._http.get("/server_info", optional=True)
        return info

    def encode(self, prompt: str | list[str]) -> Any:
        """The reply of `/encode`, which servers of embedding models may have; ours has not."""
        return self._http.post("/encode", {"text": prompt}, optional=True)

    def start_profile(self) -> None:
        """For servers that have `/start_profile`; ours has not."""
        self._http.get("/start_profile", optional=True)

    def stop_profile(self) -> None:
        """For servers that have `/stop_profile`; ours has not."""
        self._http.get("/stop_profile", optional=True)

    def shutdown(self) -> None:
        """Closes the connections; the server goes on."""
        self._http.close()

    def __repr__(self) -> str:
        return f"RuntimeEndpoint({self.base_url!r})"

    def _names(self) -> str:
        names = (self.model_info.get(key) for key in ("model_path", "served_model_name"))
        return " ".join(str(name) for name in names if name)

    def _request(self, s: Transcript, params: SglSamplingParams) -> dict[str, Any]:
        body = {"text": s.text_, "sampling_params": _sampling_of(params)}
        for name in _REQUEST_FIELDS:
            if (value := getattr(params, name)) is not None:
                body[name] = value
        return _with_images(body, s)

    def _plant(self, text: str, s: Transcript | None = None) -> dict[str, Any]:
        body = {"text": text, "sampling_params": {"max_new_tokens": 0}}
        reply: dict[str, Any] = self.ask(_with_images(body, s))
        return reply

    def _score(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The log-probabilities of several texts, without an answer to them."""
        params = {"max_new_tokens": 0, "temperature": 0.0}
        replies: list[dict[str, Any]] = self.ask(
            {**body, "sampling_params": params, "return_logprob": True}
        )
        return replies


def _model_info(http: HttpClient) -> dict[str, Any]:
    info = http.get("/get_model_info")
    if not isinstance(info, dict) or "model_path" not in info:
        raise EndpointError(
            f"{http.base_url} does not tell its model_path at /get_model_info, so it is no server "
            "of the native API; for servers of OpenAI's API use sgl.OpenAI"
        )
    return info


def tokens_of_choice(
    tokens: Sequence[LogprobTriple], choice: str, num_prompt_tokens: int
) -> list[LogprobTriple]:
    """The tokens that hold the choice's text; `tokens` begin with some of the prompt.

    A token that joins the prompt's end with the choice's beginning belongs to the choice.
    """
    for count in reversed(range(len(tokens))):
        if "".join(str(token[2]) for token in tokens[count:]).endswith(choice):
            return list(tokens[count:])
    # Texts of single tokens need not add up: a character may be in two of them.
    return list(tokens[min(num_prompt_tokens, len(tokens) - 1) :])


def _sampling_of(params: SglSamplingParams) -> dict[str, Any]:
    stop, regex = params.stops(), params.regex
    if params.dtype is not None:
        name = params.dtype if isinstance(params.dtype, str) else params.dtype.__name__
        if name not in _DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(_DTYPES)}, got {params.dtype!r}")
        regex, more = _DTYPES[name]
        stop = [*stop, *more]
    return {
        "skip_special_tokens": global_config.skip_special_tokens_in_output,
        "spaces_between_special_tokens": global_config.spaces_between_special_tokens_in_out,
        "max_new_tokens": params.max_new_tokens,
        "min_new_tokens": params.min_new_tokens,
        "n": params.n,
        "stop": stop or None,
        "stop_token_ids": _listed(params.stop_token_ids),
        "stop_regex": _listed(params.stop_regex),
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": params.min_p,
        "frequency_penalty": params.frequency_penalty,
        "presence_penalty": params.presence_penalty,
        "ignore_eos": params.ignore_eos,
        "regex": regex,
        "json_schema": params.json_schema,
    }


def _listed(value: Any) -> Any:
    return value if value is None or isinstance(value, str) else list(value)


def _with_images(body: dict[str, Any], s: Transcript | None) -> dict[str, Any]:
    return {**body, "image_data": s.images_} if s is not None and s.images_ else body


def _check_complete(reply: dict[str, Any]) -> None:
    """An answer that the server broke off is no answer."""
    reason = reply["meta_info"].get("finish_reason")
    if isinstance(reason, dict) and reason.get("type") == "abort":
        raise EndpointError(
            f"the server aborted the request: {reason.get('message') or 'no reason given'}",
            reason.get("status_code"),
        )
