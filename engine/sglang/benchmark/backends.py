"""The APIs that servers speak: how a request is written, and what an event of its answer says."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Ask:
    """One request of the benchmark."""

    prompt: str | list[int] | list[Json]  # text, token ids, or the messages of a chat
    output_len: int
    at: float | None = None  # seconds after the start; None: as the request rate says
    follow_ups: tuple[str, ...] = ()  # what the user says after each answer
    adapter: str | None = None  # None: the model alone

    def next_turn(self, answer: str, is_chat: bool) -> "Ask":
        """The conversation's next request: all that was said, and the next question."""
        question, *later = self.follow_ups
        prompt: str | list[Json]
        if is_chat:
            said = {"role": "assistant", "content": answer}
            prompt = [*self.messages, said, {"role": "user", "content": question}]
        else:
            prompt = f"{self.prompt}{answer}{question}"
        return replace(self, prompt=prompt, follow_ups=tuple(later))

    @property
    def messages(self) -> list[Json]:
        """The prompt as a chat."""
        if isinstance(self.prompt, str):
            return [{"role": "user", "content": self.prompt}]
        return [message for message in self.prompt if isinstance(message, dict)]


@dataclass(frozen=True)
class Sampling:
    """How answers are made; the same for all requests."""

    model: str
    stream: bool = True
    temperature: float = 0.0
    top_p: float = 1.0
    ignore_eos: bool = True
    return_logprob: bool = False


@dataclass(frozen=True)
class News:
    """What an event of a stream, or a whole answer, adds. `None`: it does not say.

    Raises TypeError where the server's texts are no texts or its counts no counts.
    """

    text: str = ""  # new text
    whole_text: str | None = None  # all text so far, where the API sends that
    has_token: bool = False
    prompt_tokens: int | None = None
    completion_tokens: int | None = None  # so far
    cached_tokens: int | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        for text in (self.text, self.whole_text):
            if not isinstance(text, str | None):
                raise TypeError(f"text must be a string, got {text!r}")
        for count in (self.prompt_tokens, self.completion_tokens, self.cached_tokens):
            if not isinstance(count, int | None) or (count or 0) < 0:
                raise TypeError(f"a number of tokens must be a whole number from 0, got {count!r}")


@dataclass(frozen=True)
class Backend:
    path: str
    port: int
    is_sglang: bool  # has /flush_cache and /server_info
    is_chat: bool  # takes messages; the others take text or token ids
    body: Callable[[Ask, Sampling], Json]
    # Of an object that is not as the API says: AttributeError, LookupError or TypeError.
    read: Callable[[Json], News]

    @property
    def is_embedding(self) -> bool:
        return self.path == "/v1/embeddings"

    def request(self, ask: Ask, sampling: Sampling) -> Json:
        """The body with the adapter: ours take it beside the model, others as a model."""
        body = self.body(ask, sampling)
        if ask.adapter is not None:
            body["lora_path" if self.is_sglang else "model"] = ask.adapter
        return body


# ------------------------------------------------------------------ the native API


def _native_body(ask: Ask, sampling: Sampling) -> Json:
    return {
        "text" if isinstance(ask.prompt, str) else "input_ids": ask.prompt,
        "sampling_params": {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_new_tokens": ask.output_len,
            "ignore_eos": sampling.ignore_eos,
        },
        "stream": sampling.stream,
        "return_logprob": sampling.return_logprob,
    }


def _read_native(event: Json) -> News:
    if "error" in event:
        return News(error=_error_text(event["error"]))
    meta = event.get("meta_info") or {}
    reason = meta.get("finish_reason") or {}
    if reason.get("type") == "abort":
        return News(error=f"aborted: {reason.get('message', '')}")
    count = meta.get("completion_tokens")
    return News(
        whole_text=event.get("text") or "",
        has_token=bool(count),
        prompt_tokens=meta.get("prompt_tokens"),
        completion_tokens=count,
        cached_tokens=meta.get("cached_tokens"),
    )


# ------------------------------------------------------------------ OpenAI's


def _completions_body(ask: Ask, sampling: Sampling) -> Json:
    own = {"prompt": ask.prompt, "logprobs": 1 if sampling.return_logprob else None}
    return _openai_body(own, ask, sampling)


def _chat_body(ask: Ask, sampling: Sampling) -> Json:
    own = {"messages": ask.messages, "logprobs": True if sampling.return_logprob else None}
    return _openai_body(own, ask, sampling)


def _openai_body(own: Json, ask: Ask, sampling: Sampling) -> Json:
    body = {
        "model": sampling.model,
        **{name: value for name, value in own.items() if value is not None},
        "max_tokens": ask.output_len,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "ignore_eos": sampling.ignore_eos,
        "stream": sampling.stream,
    }
    if sampling.stream:
        body["stream_options"] = {"include_usage": True}
    return body


def _read_openai(event: Json) -> News:
    if "error" in event:
        return News(error=_error_text(event["error"]))
    text = ""
    for choice in event.get("choices") or []:
        message = choice.get("delta") or choice.get("message") or choice
        # Reasoning comes in a field of its own and is answer all the same.
        text += (message.get("reasoning_content") or "") + (
            message.get("content") or message.get("text") or ""
        )
    usage = event.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    return News(
        text=text,
        has_token=bool(text),
        prompt_tokens=usage.get("prompt_tokens"),
        completion_tokens=usage.get("completion_tokens"),
        cached_tokens=details.get("cached_tokens"),
    )


def _embeddings_body(ask: Ask, sampling: Sampling) -> Json:
    return {"model": sampling.model, "input": ask.prompt}


def _read_embeddings(answer: Json) -> News:
    if "error" in answer:
        return News(error=_error_text(answer["error"]))
    if not answer["data"][0]["embedding"]:
        return News(error="the embedding is empty")
    usage = answer.get("usage") or {}
    return News(prompt_tokens=usage.get("prompt_tokens"))


def _error_text(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)


def _completions(port: int, is_sglang: bool) -> Backend:
    return Backend("/v1/completions", port, is_sglang, False, _completions_body, _read_openai)


def _chat(port: int, is_sglang: bool) -> Backend:
    return Backend("/v1/chat/completions", port, is_sglang, True, _chat_body, _read_openai)


def _embeddings(port: int, is_sglang: bool) -> Backend:
    return Backend("/v1/embeddings", port, is_sglang, False, _embeddings_body, _read_embeddings)


_NATIVE = Backend("/generate", 30000, True, False, _native_body, _read_native)

BACKENDS: dict[str, Backend] = {
    "sglang": _NATIVE,
    "sglang-native": _NATIVE,
    "sglang-oai": _completions(30000, True),
    "sglang-oai-chat": _chat(30000, True),
    "sglang-embedding": _embeddings(30000, True),
    "vllm": _completions(8000, False),
    "vllm-chat": _chat(8000, False),
    "vllm-embedding": _embeddings(8000, False),
    "lmdeploy": _completions(23333, False),
    "lmdeploy-chat": _chat(23333, False),
}
