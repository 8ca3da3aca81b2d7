"""OpenAI's API, and every server that speaks it."""

import json
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sglang.lang.backend.base_backend import BaseBackend, chat_messages, import_sdk
from sglang.lang.backend.runtime_endpoint import (
    MAX_SELECT_TEMPERATURE,
    NUMBER_STOPS,
    tokens_of_choice,
)
from sglang.lang.chat_template import ChatTemplate
from sglang.lang.choices import ChoiceScores, ChoicesDecision, ChoicesSamplingMethod
from sglang.lang.ir import SglSamplingParams
from sglang.lang.transcript import Transcript

# Models that only go on with a text. All others answer messages.
COMPLETION_MODELS = ("gpt-3.5-turbo-instruct", "davinci-002", "babbage-002")
_NUMBERS = {"int": re.compile(r"\s*([-+]?\d+)"), "float": re.compile(r"\s*([-+]?\d*\.?\d+)")}
# Not in OpenAI's API, but in ours; sent only when a program asks for them.
_EXTENSIONS = {
    "top_k": "top_k",
    "min_p": "min_p",
    "min_new_tokens": "min_tokens",
    "stop_token_ids": "stop_token_ids",
    "stop_regex": "stop_regex",
    "ignore_eos": "ignore_eos",
    "regex": "regex",
}
_OWN = (
    "max_new_tokens", "n", "stop", "temperature", "top_p", "frequency_penalty", "presence_penalty",
    "json_schema", "dtype", "return_logprob", "top_logprobs_num",
)  # fmt: skip


@dataclass
class TokenUsage:
    """Tokens that the provider has counted, over all programs and their threads."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, usage: Any) -> None:
        if usage is not None:
            with self._lock:
                self.prompt_tokens += usage.prompt_tokens
                self.completion_tokens += usage.completion_tokens

    def reset(self) -> None:
        with self._lock:
            self.prompt_tokens = self.completion_tokens = 0


class OpenAI(BaseBackend):
    """A model behind OpenAI's API. Further arguments go to the package's client."""

    def __init__(
        self,
        model_name: str,
        is_chat_model: bool | None = None,
        chat_template: ChatTemplate | None = None,
        is_azure: bool = False,
        *args: Any,
        client: Any = None,
        **kwargs: Any,
    ) -> None:
        """`client`: one that exists already, instead of a new one."""
        super().__init__()
        if client is None:
            sdk = import_sdk("openai", "openai", type(self).__name__)
            client = (sdk.AzureOpenAI if is_azure else sdk.OpenAI)(*args, **kwargs)
        self.client = client
        self.model_name = model_name
        self.is_chat_model = (
            model_name not in COMPLETION_MODELS if is_chat_model is None else is_chat_model
        )
        self.chat_template = chat_template or self.chat_template
        self.token_usage = TokenUsage()

    def get_model_name(self) -> str:
        return self.model_name

    def generate(
        self, s: Transcript, sampling_params: SglSamplingParams
    ) -> tuple[str | list[str], Any]:
        reply = self._create(s, sampling_params)
        self.token_usage.add(reply.usage)
        texts = [self._text_of(choice, sampling_params.dtype) for choice in reply.choices]
        meta = [_meta(choice, reply.usage) for choice in reply.choices]
        return (texts, meta) if sampling_params.n > 1 else (texts[0], meta[0])

    def generate_stream(
        self, s: Transcript, sampling_params: SglSamplingParams
    ) -> Iterator[tuple[str, Any]]:
        if sampling_params.dtype is not None:
            text, told = self.generate(s, sampling_params)
            yield str(text), told
            return
        chunks = self._create(
            s, sampling_params, stream=True, stream_options={"include_usage": True}
        )
        meta: dict[str, Any] = {}
        for chunk in chunks:
            if chunk.usage is not None:
                self.token_usage.add(chunk.usage)
                meta = {**meta, **_usage(chunk.usage)}
            for choice in chunk.choices:
                meta = {**meta, "finish_reason": choice.finish_reason}
                piece = choice.delta.content if self.is_chat_model else choice.text
                yield piece or "", meta

    def select(
        self,
        s: Transcript,
        choices: Sequence[str],
        temperature: float,
        choices_method: ChoicesSamplingMethod,
    ) -> ChoicesDecision:
        """Scores the choices by echoed prompts, which completion servers such as ours have."""
        if self.is_chat_model:
            raise NotImplementedError(
                "select needs log-probabilities of a prompt, which chat models do not give; use a "
                "completion model (is_chat_model=False) or a RuntimeEndpoint"
            )
        if temperature > MAX_SELECT_TEMPERATURE:
            raise ValueError(
                f"select takes the likeliest choice: temperature must be at most "
                f"{MAX_SELECT_TEMPERATURE}, got {temperature}"
            )
        behind = self._score([s.text_ + choice for choice in choices])
        tokens = [
            tokens_of_choice(one, choice, len(one) - 1)
            for one, choice in zip(behind, choices, strict=True)
        ]
        alone = None
        if choices_method.requires_unconditional_logprobs:
            texts = ["".join(token[2] for token in one) for one in tokens]
            alone = [
                _aligned(one, len(scored))
                for one, scored in zip(self._score(texts), tokens, strict=True)
            ]
        return choices_method(ChoiceScores(choices, tokens, [[] for _ in choices], alone))

    def _create(self, s: Transcript, params: SglSamplingParams, **more: Any) -> Any:
        options = {**self._options(s, params), **more}
        if self.is_chat_model:
            return self.client.chat.completions.create(
                model=self.model_name, messages=chat_messages(s, type(self).__name__), **options
            )
        prompt = s.text_ + ('"' if _dtype_name(params.dtype) == "str" else "")
        return self.client.completions.create(model=self.model_name, prompt=prompt, **options)

    def _options(self, s: Transcript, params: SglSamplingParams) -> dict[str, Any]:
        params.check_supported(type(self).__name__, *_OWN, *_EXTENSIONS)
        if s.images_ and not self.is_chat_model:
            raise ValueError("completion models take no images; use a chat model")
        changed = params.changed()
        kind = _dtype_name(params.dtype)
        stop = [*params.stops(), *_dtype_stops(kind)]
        options: dict[str, Any] = {
            "max_completion_tokens" if self.is_chat_model else "max_tokens": params.max_new_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "n": params.n,
            "frequency_penalty": params.frequency_penalty,
            "presence_penalty": params.presence_penalty,
        }
        if stop:
            options["stop"] = stop
        if params.return_logprob:
            options |= self._logprob_options(params.top_logprobs_num or 0)
        extra = {wire: changed[name] for name, wire in _EXTENSIONS.items() if name in changed}
        if params.json_schema is not None and self.is_chat_model:
            schema = {"name": "answer", "schema": json.loads(params.json_schema)}
            options["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif params.json_schema is not None:
            extra["json_schema"] = params.json_schema
        return {**options, "extra_body": extra} if extra else options

    def _logprob_options(self, num_top: int) -> dict[str, Any]:
        if self.is_chat_model:
            return {"logprobs": True, "top_logprobs": num_top}
        return {"logprobs": num_top}

    def _text_of(self, choice: Any, dtype: type | str | None) -> str:
        text = choice.message.content if self.is_chat_model else choice.text
        kind = _dtype_name(dtype)
        if kind == "str":
            return f'"{text}"'
        if kind is None:
            return text or ""
        found = _NUMBERS[kind].match(text or "")
        if found is None:
            raise ValueError(f"the model answered {text!r} where the program wants a {kind}")
        return found[1]

    def _score(self, texts: list[str]) -> list[list[tuple[float | None, None, str]]]:
        """Log-probability and text of each token of each text."""
        reply = self.client.completions.create(
            model=self.model_name, prompt=texts, max_tokens=1, temperature=0, echo=True, logprobs=1
        )
        self.token_usage.add(reply.usage)
        return [
            [
                (value, None, token)
                for value, token in zip(
                    choice.logprobs.token_logprobs, choice.logprobs.tokens, strict=True
                )
            ][:-1]
            for choice in sorted(reply.choices, key=lambda choice: int(choice.index))
        ]


def _dtype_name(dtype: type | str | None) -> str | None:
    if dtype is None:
        return None
    name = dtype if isinstance(dtype, str) else dtype.__name__
    if name not in ("int", "float", "str"):
        raise ValueError(f"dtype must be int, float or str with OpenAI's API, got {dtype!r}")
    return name


def _dtype_stops(kind: str | None) -> tuple[str, ...]:
    if kind is None:
        return ()
    return ('"',) if kind == "str" else NUMBER_STOPS


def _aligned(tokens: list[Any], length: int) -> list[Any]:
    """The last `length` tokens; a text alone may begin with other ones than behind a prompt."""
    missing = [(None, None, "")] * max(length - len(tokens), 0)
    return [*missing, *tokens][-length:]


def _usage(usage: Any) -> dict[str, Any]:
    if usage is None:
        return {}
    return {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}


def _meta(choice: Any, usage: Any) -> dict[str, Any]:
    meta = {"finish_reason": choice.finish_reason, **_usage(usage)}
    if getattr(choice, "logprobs", None) is not None:
        meta["logprobs"] = choice.logprobs
    return meta
