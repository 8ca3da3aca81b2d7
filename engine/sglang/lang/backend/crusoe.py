"""Crusoe's managed inference, which speaks OpenAI's API."""

from typing import Any

from sglang.lang.backend.openai import OpenAI

BASE_URL = "https://api.inference.crusoecloud.com/v1"


class Crusoe(OpenAI):
    """A model of Crusoe's. Further arguments are those of `OpenAI`."""

    def __init__(
        self,
        model_name: str,
        api_key: str | None = None,
        base_url: str = BASE_URL,
        *,
        is_chat_model: bool = True,
        client: Any = None,
        **kwargs: Any,
    ) -> None:
        if client is None and not api_key:
            raise ValueError("Crusoe needs api_key, an inference key of the Crusoe console")
        super().__init__(
            model_name,
            is_chat_model=is_chat_model,
            client=client,
            api_key=api_key,
            base_url=base_url,
            **kwargs,
        )
