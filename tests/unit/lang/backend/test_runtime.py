"""A server as a child process: what can be said without starting a whole one."""

import http.server
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tokenizers import Tokenizer, models

import sglang as sgl
from sglang.lang.backend.http_client import EndpointError, HttpClient
from sglang.lang.backend.runtime import _free_port

ABORTED = {"type": "abort", "message": "by admin"}


def answer(text: str, **meta: Any) -> dict[str, Any]:
    return {"text": text, "meta_info": {"finish_reason": None, **meta}}


class Wire(http.server.BaseHTTPRequestHandler):
    """Has what our server has. A prompt may ask for an answer that is aborted."""

    model_path: str  # of the class that a test makes

    def do_GET(self) -> None:
        told = {"/get_model_info": {"model_path": self.model_path}, "/health_generate": "ok"}
        self.reply(told.get(self.path))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))))
        if self.path != "/generate":
            self.reply(None)
            return
        meta = {"finish_reason": ABORTED} if "abort" in body["text"] else {}
        if body.get("stream"):
            events = [answer("He"), answer("He"), answer("Hello", **meta)]
            lines = [f"data: {json.dumps(event)}\n\n" for event in events]
            self.send("".join([*lines, "data: [DONE]\n\n"]))
        else:
            self.reply(answer("Hello", asked=body, **meta))

    def reply(self, told: Any) -> None:
        if told is None:
            self.send_error(404)
        else:
            self.send(json.dumps(told))

    def send(self, text: str) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args: object) -> None:
        """Says nothing."""


class Listener(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET


class Listener6(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6


Start = Callable[..., sgl.Runtime]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Start]:
    """Starts Runtimes whose child does nothing; this process answers in its place."""
    real, ended = subprocess.Popen, []

    def idle(command: list[str], **options: Any) -> "subprocess.Popen[bytes]":
        given = json.loads(Path(command[4]).read_text())
        kind = Listener6 if ":" in given["host"] else Listener
        handler = type("Wired", (Wire,), {"model_path": str(tmp_path)})
        listener = kind((given["host"], given["port"]), handler)
        thread = threading.Thread(target=listener.serve_forever, args=(0.01,))
        thread.start()
        ended.extend((listener.shutdown, listener.server_close, thread.join))
        return real([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    def started(**options: Any) -> sgl.Runtime:
        runtime = sgl.Runtime(model_path="demo", launch_timeout=30, **options)
        ended.insert(0, runtime.shutdown)
        return runtime

    monkeypatch.setattr(subprocess, "Popen", idle)
    yield started
    for end in ended:
        end()


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("localhost", "localhost"),
        pytest.param("::1", "[::1]", marks=needs_ipv6),
        pytest.param("::", "[::1]", marks=needs_ipv6),
    ],
)
def test_a_server_is_asked_where_it_is_and_not_through_a_proxy(
    start: Start, monkeypatch: pytest.MonkeyPatch, host: str, address: str
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")  # nothing listens there
    runtime = start(host=host)
    where, _, port = runtime.url.rpartition(":")
    assert where == f"http://{address}" and 30000 <= int(port) < 40000
    assert json.loads(runtime.generate("The sea"))["text"] == "Hello"


@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("::1", marks=needs_ipv6)])
def test_a_port_that_is_taken_at_the_host_is_not_chosen(start: Start, host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # others have just left
        taken.bind((host, _free_port("127.0.0.1")))
        taken.listen()
        assert not start(host=host).url.endswith(f":{taken.getsockname()[1]}")


def test_a_shutdown_closes_every_connection_and_the_process(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients: list[HttpClient] = []
    real = HttpClient.__init__

    def noted(self: HttpClient, *args: Any, **options: Any) -> None:
        real(self, *args, **options)
        clients.append(self)

    monkeypatch.setattr(HttpClient, "__init__", noted)
    runtime = start()
    runtime.generate("The sea")
    assert [client._client.is_closed for client in clients] == [True, False]
    runtime.shutdown()
    runtime.shutdown()
    assert [client._client.is_closed for client in clients] == [True, True]
    assert not psutil.pid_exists(runtime.pid)


def test_a_reply_is_text_of_json_with_what_was_asked(start: Start) -> None:
    reply = json.loads(start().generate("The sea", {"n": 1}, return_logprob=True, session_id="s"))
    assert reply["meta_info"]["asked"] == {
        "text": "The sea", "sampling_params": {"n": 1}, "return_logprob": True, "session_id": "s",
    }  # fmt: skip


async def test_pieces_come_as_they_are_made_and_empty_ones_not_at_all(start: Start) -> None:
    assert [piece async for piece in start().async_generate("The sea")] == ["He", "llo"]


async def test_an_answer_that_is_aborted_raises_whole_and_streamed(start: Start) -> None:
    runtime = start()
    with pytest.raises(EndpointError, match="aborted the request: by admin"):
        runtime.generate("abort")
    pieces = []
    with pytest.raises(EndpointError, match="aborted the request: by admin"):
        async for piece in runtime.async_generate("abort"):
            pieces.append(piece)
    assert pieces == ["He"]


def test_what_our_server_lacks_is_one_sentence(start: Start) -> None:
    runtime = start()
    calls = {
        "/encode": lambda: runtime.encode("text"),
        "/start_profile": runtime.start_profile,
        "/stop_profile": runtime.stop_profile,
    }
    for path, call in calls.items():
        with pytest.raises(EndpointError, match=f"server at {runtime.url} has no {path};"):
            call()


def test_the_tokenizer_is_the_server_s(start: Start, tmp_path: Path) -> None:
    words = Tokenizer(models.WordLevel({"sea": 0, "wide": 1, "?": 2}, unk_token="?"))
    words.save(str(tmp_path / "tokenizer.json"))
    tokenizer = start().get_tokenizer()
    assert tokenizer.encode("wide") == [1]
    assert tokenizer.decode([0]) == "sea"
    assert tokenizer.vocab_size == 3


@pytest.mark.parametrize(
    ("host", "family"),
    [
        ("127.0.0.1", socket.AF_INET),
        ("0.0.0.0", socket.AF_INET),
        pytest.param("::1", socket.AF_INET6, marks=needs_ipv6),
        pytest.param("::", socket.AF_INET6, marks=needs_ipv6),
    ],
)
def test_a_free_port_is_free_at_the_server_s_own_host(
    host: str, family: socket.AddressFamily
) -> None:
    port = _free_port(host)
    assert 30000 <= port < 40000
    with socket.socket(family) as taken:
        taken.bind((host, port))
        taken.listen()
        assert _free_port(host) != port


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host"])
def test_a_host_of_another_machine_is_named(host: str) -> None:
    with pytest.raises(ValueError, match=f"host '{host}' is no address"):
        _free_port(host)


def test_a_server_that_cannot_start_says_so(tmp_path) -> None:
    with pytest.raises(RuntimeError, match="the server ended with code 1 before it was ready"):
        sgl.Runtime(model_path=str(tmp_path / "nothing"), launch_timeout=120)


def test_a_server_that_is_late_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    real, started = subprocess.Popen, []

    def idle(command: list[str], **options):
        """Starts what never answers, and keeps the options that were meant for the server."""
        assert command[1:4] == ["-m", "sglang.launch_server", "--config"]
        assert Path(command[4]).stat().st_mode & 0o077 == 0  # nobody else reads the key
        process = real([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        started.append((process, json.loads(Path(command[4]).read_text()), Path(command[4])))
        return process

    monkeypatch.setattr(subprocess, "Popen", idle)
    with pytest.raises(TimeoutError, match="not ready after 0 s"):
        sgl.Runtime(
            model_path="demo", page_size=16, api_key="k", dtype=None, port=30999, launch_timeout=0
        )
    process, options, file = started[0]
    assert options == {
        "model_path": "demo", "page_size": 16, "api_key": "k", "host": "127.0.0.1",
        "port": 30999, "log_level": "error",
    }  # fmt: skip
    assert process.poll() is not None
    assert not psutil.pid_exists(process.pid)
    assert not file.exists()
