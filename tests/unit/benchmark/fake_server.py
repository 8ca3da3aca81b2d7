"""A server on a port of its own that answers as told; words are its tokens."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

VOCAB = 1000


def ids_of(text: str) -> list[int]:
    """`w7 w8` → 7 8; any other word by its letters."""
    return [
        int(word[1:]) if word[:1] == "w" and word[1:].isdigit() else sum(word.encode()) % VOCAB
        for word in text.split()
    ]


def text_of(ids: list[int]) -> str:
    return " ".join(f"w{i}" for i in ids)


@dataclass
class FakeServer:
    """A prompt that names a fault gets it: `status`, `cut`, `error`, `garbage`, `several`."""

    polls_until_ready: int = 1
    cached: int = 1
    info: Any = field(default_factory=lambda: {"version": "fake"})
    bodies: list[dict[str, Any]] = field(default_factory=list)  # of generating requests
    paths: list[str] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)  # of the last request
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        self.headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
        raw = await reader.readexactly(int(self.headers.get("content-length", 0)))
        path = first.split(" ")[1]
        self.paths.append(path)
        status, content = self.answer(path, json.loads(raw or b"{}"))
        writer.write(f"HTTP/1.1 {status} X\r\nconnection: close\r\n\r\n{content}".encode())
        await writer.drain()
        writer.close()

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, str]:
        if path == "/v1/models":
            self.polls_until_ready -= 1
            models = [] if self.polls_until_ready > 0 else [{"id": "words"}]
            return 200, json.dumps({"data": models})
        if path == "/model_info":
            return 200, json.dumps({"vocab_size": VOCAB})
        if path == "/server_info":
            return 200, json.dumps(self.info)
        if path == "/flush_cache":
            return 200, ""
        if path == "/tokenize":
            text = body.get("prompt") or f"chat {body['messages'][-1]['content']}"
            return 200, json.dumps({"tokens": ids_of(text)})
        if path == "/detokenize":
            return 200, json.dumps({"text": text_of(body["tokens"])})
        self.bodies.append(body)
        return self.generate(path, body)

    def generate(self, path: str, body: dict[str, Any]) -> tuple[int, str]:
        prompt = json.dumps(body)
        if "status" in prompt:
            return 503, json.dumps({"error": {"message": "queue is full"}})
        if "garbage" in prompt:
            return 200, "data: {\n\n"
        if "several" in prompt:
            return 200, "data: [{}, {}]\n\n"
        if path == "/v1/embeddings":
            usage = {"prompt_tokens": len(body["input"])}
            return 200, json.dumps({"data": [{"embedding": [1.0]}], "usage": usage})
        if path == "/generate":
            events = self.native_events(body)
        else:
            events = self.openai_events(body, "chat" in path)
        if not body["stream"]:
            return 200, json.dumps(events[-1])
        if "error" in prompt:
            events[1:] = [{"error": {"message": "worker died"}}]
        text = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
        return 200, text if "cut" in prompt else text + "data: [DONE]\n\n"

    def native_events(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        ids = body.get("input_ids") or ids_of(body["text"])
        total = body["sampling_params"]["max_new_tokens"]
        meta = {"prompt_tokens": len(ids), "cached_tokens": self.cached}
        return [
            {"text": text_of(list(range(n))), "meta_info": {**meta, "completion_tokens": n}}
            for n in range(1, total + 1)
        ]

    def openai_events(self, body: dict[str, Any], is_chat: bool) -> list[dict[str, Any]]:
        prompt = body.get("prompt") or body["messages"][-1]["content"]
        ids = ids_of(prompt) if isinstance(prompt, str) else prompt
        usage = {
            "prompt_tokens": len(ids), "completion_tokens": body["max_tokens"],
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }  # fmt: skip
        part = {"delta": {"content": "x"}} if is_chat else {"text": "x"}
        start = [{"choices": [{"delta": {"role": "assistant", "content": ""}}]}] if is_chat else []
        parts = [{"choices": [part], "usage": None} for _ in range(body["max_tokens"])]
        whole = {"message": {"content": "xx"}} if is_chat else {"text": "xx"}
        choices = [] if body["stream"] else [whole]
        return [*start, *parts, {"choices": choices, "usage": usage}]


@asynccontextmanager
async def serving(server: FakeServer) -> AsyncIterator[FakeServer]:
    listener = await asyncio.start_server(server.handle, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        await listener.wait_closed()
