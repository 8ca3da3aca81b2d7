"""Any provider that the package litellm knows. Chat only."""

from collections.abc import Iterator
from typing import Any

from sglang.lang.backend.base_backend import BaseBackend, chat_messages, import_sdk
from sglang.lang.chat_template import ChatTemplate
from sglang.lang.ir import SglSamplingParams
from sglang.lang.transcript import Transcript


class LiteLLM(BaseBackend):
    """A model by litellm's name, such as `mistral/mistral-large-latest`.

    `options` go with every call: api_key, api_base, timeout …
    """

    is_chat_model = True

    def __init__(
        self,
        model_name: str,
        chat_template: ChatTemplate | None = None,
        client: Any = None,
        **options: Any,
    ) -> None:
        """`client`: what has litellm's function `completion`, instead of the package."""
        super().__init__()
        self.client = import_sdk("litellm", "litellm", "LiteLLM") if client is None else client
        self.model_name = model_name
        self.chat_template = chat_template or self.chat_template
        self.options = options

    def get_model_name(self) -> str:
        return self.model_name

    def generate(
        self, s: Transcript, sampling_params: SglSamplingParams
    ) -> tuple[str | list[str], Any]:
        request = self._request(s, sampling_params)
        reply = self.client.completion(**request)
        texts = [choice.message.content or "" for choice in reply.choices]
        meta = [_meta(choice, reply) for choice in reply.choices]
        return (texts, meta) if sampling_params.n > 1 else (texts[0], meta[0])

    def generate_stream(
        self, s: Transcript, sampling_params: SglSamplingParams
    ) -> Iterator[tuple[str, Any]]:
        request = self._request(s, sampling_params)
        for chunk in self.client.completion(**request, stream=True):
            for choice in chunk.choices:
                yield choice.delta.content or "", {"finish_reason": choice.finish_reason}

    def _request(self, s: Transcript, params: SglSamplingParams) -> dict[str, Any]:
        params.check_supported(
            "LiteLLM", "max_new_tokens", "n", "stop", "temperature", "top_p", "top_k",
            "frequency_penalty", "presence_penalty",
        )  # fmt: skip
        changed = params.changed()
        names = ("n", "temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty")
        request = {
            "model": self.model_name,
            "messages": chat_messages(s, "LiteLLM"),
            "max_tokens": params.max_new_tokens,
            **{name: changed[name] for name in names if name in changed},
            **self.options,
        }
        return {**request, "stop": params.stops()} if params.stops() else request


def _meta(choice: Any, reply: Any) -> dict[str, Any]:
    return {
        "finish_reason": choice.finish_reason,
        "prompt_tokens": reply.usage.prompt_tokens,
        "completion_tokens": reply.usage.completion_tokens,
    }
