"""Text to token ids and back, by a tokenizer's folder or by the server itself."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

import httpx

from sglang.benchmark.errors import BenchmarkError

_CALLS_AT_A_TIME = 16


class Tokens(Protocol):
    async def vocab_size(self) -> int: ...

    async def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Without the tokens that a tokenizer puts around a text."""

    async def decode(self, prompts: Sequence[list[int]]) -> list[str]: ...

    async def render(self, chats: Sequence[list[dict[str, Any]]]) -> list[list[int]]:
        """Each chat by the model's template, ready to be answered."""


class LocalTokens:
    """By a folder with tokenizer.json and, for chats, a template."""

    def __init__(self, folder: str) -> None:
        from sglang_router.text import TextError, Tokenizer

        try:
            self._tokenizer = Tokenizer(folder)
        except (OSError, TextError) as error:
            raise BenchmarkError(f"--tokenizer {folder}: {error}") from error

    async def vocab_size(self) -> int:
        return int(self._tokenizer.vocab_size)

    async def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(self._tokenizer.encode(text, False)) for text in texts]

    async def decode(self, prompts: Sequence[list[int]]) -> list[str]:
        return [str(self._tokenizer.decode(ids)) for ids in prompts]

    async def render(self, chats: Sequence[list[dict[str, Any]]]) -> list[list[int]]:
        return await self.encode([self._tokenizer.apply_chat_template(chat) for chat in chats])


class ServerTokens:
    """By the server's /tokenize and /detokenize, which vLLM has too."""

    def __init__(self, client: httpx.AsyncClient, model: str) -> None:
        self._client = client
        self._model = model

    async def vocab_size(self) -> int:
        told = await self._ask("GET", "/model_info", None)
        if not isinstance(told.get("vocab_size"), int):
            raise BenchmarkError(
                "the server does not tell the size of its vocabulary; give --tokenizer FOLDER"
            )
        return int(told["vocab_size"])

    async def encode(self, texts: Sequence[str]) -> list[list[int]]:
        bodies = [{"prompt": text, "add_special_tokens": False} for text in texts]
        return await self._tokens_of(bodies)

    async def decode(self, prompts: Sequence[list[int]]) -> list[str]:
        told = await self._ask_all("/detokenize", [{"tokens": ids} for ids in prompts])
        return [str(answer.get("text", answer.get("prompt", ""))) for answer in told]

    async def render(self, chats: Sequence[list[dict[str, Any]]]) -> list[list[int]]:
        bodies = [{"messages": chat, "add_generation_prompt": True} for chat in chats]
        return await self._tokens_of(bodies)

    async def _tokens_of(self, bodies: list[dict[str, Any]]) -> list[list[int]]:
        tokens = [told.get("tokens") for told in await self._ask_all("/tokenize", bodies)]
        if not all(isinstance(ids, list) for ids in tokens):
            raise BenchmarkError(
                "the server's /tokenize answers without a list of tokens; give --tokenizer FOLDER"
            )
        return [list(ids or ()) for ids in tokens]

    async def _ask_all(self, path: str, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
        gate = asyncio.Semaphore(_CALLS_AT_A_TIME)

        async def one(body: dict[str, Any]) -> dict[str, Any]:
            async with gate:
                return await self._ask("POST", path, {"model": self._model, **body})

        calls: list[Coroutine[Any, Any, dict[str, Any]]] = [one(body) for body in bodies]
        return list(await asyncio.gather(*calls))

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        try:
            answer = await self._client.request(method, path, json=body)
            answer.raise_for_status()
            return dict(answer.json())
        except (httpx.HTTPError, ValueError, TypeError) as error:
            raise BenchmarkError(
                f"the server's {path} failed ({error!r}); give --tokenizer FOLDER instead"
            ) from error
