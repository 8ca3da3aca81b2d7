"""The small HTTP server beside a worker in gRPC mode."""

import asyncio

import pytest

from sglang.srt.entrypoints.sidecar import answer, start_sidecar
from tests.wire.fake_scheduler import GUARD, Worker, serve


@pytest.mark.parametrize(
    ("head", "status", "part"),
    [
        (b"GET /nope HTTP/1.1", 404, "/metrics"),
        (b"POST /health HTTP/1.1", 405, "GET"),
        (b"GET /health", 400, "HTTP"),
        (b"\xff\xfe", 400, "HTTP"),
        (b"GET /metrics?x=1 HTTP/1.1", 200, "sglang:num_running_reqs"),
    ],
)
async def test_answers(head: bytes, status: int, part: str) -> None:
    async with serve() as worker:
        got, _, body = answer(worker.service, head + b"\r\n\r\n")
    assert got == status
    assert part in body


async def test_health_turns_with_the_worker() -> None:
    async with serve() as worker:
        assert await _get(worker, b"GET /health HTTP/1.1\r\n\r\n") == (503, b"starting\n")
        await worker.become_ready()
        assert await _get(worker, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n") == (200, b"")


async def test_head_has_the_length_and_no_body() -> None:
    async with serve() as worker:
        reply = await _read(worker, b"HEAD /health HTTP/1.1\r\n\r\n")
        assert reply.startswith(b"HTTP/1.1 503 ") and reply.endswith(b"\r\n\r\n")
        assert b"Content-Length: 9\r\n" in reply


async def test_heads_that_are_cut_or_too_long_are_refused() -> None:
    async with serve() as worker:
        assert (await _get(worker, b"GET /health", end=True))[0] == 400
        assert (await _get(worker, b"GET /" + b"x" * 40_000 + b"\r\n\r\n"))[0] == 400


async def _get(worker: Worker, request: bytes, *, end: bool = False) -> tuple[int, bytes]:
    head, _, body = (await _read(worker, request, end=end)).partition(b"\r\n\r\n")
    return int(head.split()[1]), body


async def _read(worker: Worker, request: bytes, *, end: bool = False) -> bytes:
    server = await start_sidecar(worker.service, "127.0.0.1", 0)
    try:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(request)
        if end:
            writer.write_eof()
        reply = await asyncio.wait_for(reader.read(), GUARD)
        writer.close()
    finally:
        server.close()
    return reply
