"""Anthropic's messages API. Chat only."""

from collections.abc import Iterator
from typing import Any

from sglang.lang.backend.base_backend import BaseBackend, chat_messages, import_sdk
from sglang.lang.chat_template import get_chat_template
from sglang.lang.ir import SglSamplingParams
from sglang.lang.media import split_data_uri
from sglang.lang.transcript import Transcript


class Anthropic(BaseBackend):
    """A model of Anthropic's. Further arguments go to the package's client."""

    is_chat_model = True

    def __init__(self, model_name: str, *args: Any, client: Any = None, **kwargs: Any) -> None:
        """`client`: one that exists already, instead of a new one."""
        super().__init__()
        if client is None:
            client = import_sdk("anthropic", "anthropic", "Anthropic").Anthropic(*args, **kwargs)
        self.client = client
        self.model_name = model_name
        self.chat_template = get_chat_template("claude")

    def get_model_name(self) -> str:
        return self.model_name

    def generate(self, s: Transcript, sampling_params: SglSamplingParams) -> tuple[str, Any]:
        request = self._request(s, sampling_params)
        reply = self.client.messages.create(**request)
        text = "".join(block.text for block in reply.content if block.type == "text")
        return text, _meta(reply)

    def generate_stream(
        self, s: Transcript, sampling_params: SglSamplingParams
    ) -> Iterator[tuple[str, Any]]:
        request = self._request(s, sampling_params)
        with self.client.messages.stream(**request) as stream:
            for piece in stream.text_stream:
                yield piece, {}
            yield "", _meta(stream.get_final_message())

    def _request(self, s: Transcript, params: SglSamplingParams) -> dict[str, Any]:
        params.check_supported(
            "Anthropic", "max_new_tokens", "stop", "temperature", "top_p", "top_k"
        )
        messages = chat_messages(s, "Anthropic")
        system = [m["content"] for m in messages if m["role"] == "system"]
        request: dict[str, Any] = {
            "model": self.model_name,
            "messages": [_message(m) for m in messages if m["role"] != "system"],
            "max_tokens": params.max_new_tokens,
        }
        if not request["messages"]:
            raise ValueError("Anthropic needs a turn of the user before the assistant's")
        if system:
            request["system"] = "\n".join(system)
        if stops := params.stops():
            request["stop_sequences"] = stops
        changed = params.changed()
        sampling = {n: changed[n] for n in ("temperature", "top_p", "top_k") if n in changed}
        if sampling:
            # By name only older releases of the package take them; newer models refuse some.
            request["extra_body"] = sampling
        return request


def _message(message: dict[str, Any]) -> dict[str, Any]:
    if isinstance(message["content"], str):
        return message
    return {"role": message["role"], "content": [_block(part) for part in message["content"]]}


def _block(part: dict[str, Any]) -> dict[str, Any]:
    if part["type"] == "text":
        return part
    url = part["image_url"]["url"]
    data = split_data_uri(url)
    if data is None:
        return {"type": "image", "source": {"type": "url", "url": url}}
    source = {"type": "base64", "media_type": data[0], "data": data[1]}
    return {"type": "image", "source": source}


def _meta(reply: Any) -> dict[str, Any]:
    return {
        "finish_reason": reply.stop_reason,
        "prompt_tokens": reply.usage.input_tokens,
        "completion_tokens": reply.usage.output_tokens,
    }
