"""A tiny HTTP server beside a worker in gRPC mode: `/health` and `/metrics`."""

import asyncio
import contextlib

from sglang.srt.entrypoints.service import EngineService

HEAD_LIMIT = 16 * 1024  # bytes of request line and headers
HEAD_TIMEOUT = 10.0  # seconds
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed",
           503: "Service Unavailable"}  # fmt: skip
TEXT = "text/plain; charset=utf-8"
PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


async def start_sidecar(service: EngineService, host: str, port: int) -> asyncio.Server:
    """Listens at once. Raises OSError when the port is taken."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEAD_TIMEOUT)
            status, kind, body = answer(service, head)
            writer.write(_response(status, kind, body, with_body=not head.startswith(b"HEAD ")))
            await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.TimeoutError):
            writer.write(_response(400, TEXT, "The request's head is incomplete or too long.\n"))
        except ConnectionError:
            pass  # the client is gone, nobody to tell
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    return await asyncio.start_server(serve, host, port, limit=HEAD_LIMIT)


def answer(service: EngineService, head: bytes) -> tuple[int, str, str]:
    """Status, content type and body for a request's head."""
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return 400, TEXT, "Expected an HTTP/1.1 request.\n"
    method, path = words[0], words[1].split("?", 1)[0]
    if method not in ("GET", "HEAD"):
        return 405, TEXT, f"{path} takes GET, not {method}.\n"
    if path in ("/health", "/ready"):
        healthy, reason = service.health()
        return (200, TEXT, "") if healthy else (503, TEXT, f"{reason}\n")
    if path == "/metrics":
        return 200, PROMETHEUS_TEXT, service.metrics.text()
    return 404, TEXT, f"There is no {path} here; /health and /metrics are, the rest is gRPC.\n"


def _response(status: int, kind: str, body: str, with_body: bool = True) -> bytes:
    data = body.encode()
    head = (
        f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (data if with_body else b"")
