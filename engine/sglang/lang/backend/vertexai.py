"""Google's models on Vertex AI, by the package google-genai."""

import base64
from collections.abc import Iterator
from typing import Any

from sglang.lang.backend.base_backend import BaseBackend, chat_messages, import_sdk
from sglang.lang.ir import SglSamplingParams
from sglang.lang.media import split_data_uri
from sglang.lang.transcript import Transcript

_ROLES = {"user": "user", "assistant": "model"}


class VertexAI(BaseBackend):
    """A Gemini model. Project and place come from `project` and `location`, or from the
    environment, as Google's package reads it.
    """

    is_chat_model = True

    def __init__(
        self, model_name: str, safety_settings: Any = None, client: Any = None, **kwargs: Any
    ) -> None:
        """`client`: one that exists already, instead of a new one."""
        super().__init__()
        if client is None:
            sdk = import_sdk("google.genai", "google-genai", "VertexAI")
            client = sdk.Client(vertexai=True, **kwargs)
        self.client = client
        self.model_name = model_name
        self.safety_settings = safety_settings

    def get_model_name(self) -> str:
        return self.model_name

    def generate(self, s: Transcript, sampling_params: SglSamplingParams) -> tuple[str, Any]:
        request = self._request(s, sampling_params)
        reply = self.client.models.generate_content(**request)
        return reply.text or "", _meta(reply)

    def generate_stream(
        self, s: Transcript, sampling_params: SglSamplingParams
    ) -> Iterator[tuple[str, Any]]:
        request = self._request(s, sampling_params)
        for chunk in self.client.models.generate_content_stream(**request):
            yield chunk.text or "", _meta(chunk)

    def _request(self, s: Transcript, params: SglSamplingParams) -> dict[str, Any]:
        params.check_supported(
            "VertexAI", "max_new_tokens", "stop", "temperature", "top_p", "top_k",
            "frequency_penalty", "presence_penalty",
        )  # fmt: skip
        messages = chat_messages(s, "VertexAI")
        system = [m["content"] for m in messages if m["role"] == "system"]
        changed = params.changed()
        names = ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty")
        config: dict[str, Any] = {
            "max_output_tokens": params.max_new_tokens,
            **{name: changed[name] for name in names if name in changed},
        }
        if params.stops():
            config["stop_sequences"] = params.stops()
        if system:
            config["system_instruction"] = "\n".join(system)
        if self.safety_settings is not None:
            config["safety_settings"] = self.safety_settings
        contents = [
            {"role": _ROLES[m["role"]], "parts": _parts(m["content"])}
            for m in messages
            if m["role"] != "system"
        ]
        return {"model": self.model_name, "contents": contents, "config": config}


def _parts(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"text": content}]
    return [_part(part) for part in content]


def _part(part: dict[str, Any]) -> dict[str, Any]:
    if part["type"] == "text":
        return {"text": part["text"]}
    url = part["image_url"]["url"]
    data = split_data_uri(url)
    if data is None:
        return {"file_data": {"file_uri": url, "mime_type": "image/jpeg"}}
    return {"inline_data": {"mime_type": data[0], "data": base64.b64decode(data[1])}}


def _meta(reply: Any) -> dict[str, Any]:
    usage = reply.usage_metadata
    if usage is None:
        return {}
    return {
        "prompt_tokens": usage.prompt_token_count,
        "completion_tokens": usage.candidates_token_count,
    }
