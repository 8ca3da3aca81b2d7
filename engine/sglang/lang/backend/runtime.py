"""A server of our own, started as a child process and ended with this one."""

import atexit
import contextlib
import errno
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

from sglang.lang.backend.base_backend import import_sdk
from sglang.lang.backend.http_client import HttpClient
from sglang.lang.backend.runtime_endpoint import RuntimeEndpoint

HOST = "127.0.0.1"
# Where a server that listens everywhere is reached from this machine.
REACHED = {"0.0.0.0": "127.0.0.1", "::": "::1"}
FIRST_PORT, LAST_PORT = 30000, 40000
END_TIMEOUT = 15.0  # seconds for a drained end
PROBE_TIMEOUT = 20.0  # seconds for one health check, which generates a token
POLL_INTERVAL = 0.25


class Runtime:
    """`Runtime(model_path=…)` takes the server's options by name: `page_size=16`."""

    def __init__(
        self, log_level: str = "error", launch_timeout: float = 300.0, **options: Any
    ) -> None:
        """Returns when the server answers. TimeoutError after `launch_timeout` seconds,
        RuntimeError when the server ends before.
        """
        host = options.pop("host", None) or HOST
        port = options.pop("port", None) or _free_port(host)
        self.url = _url(host, port)
        self.generate_url = f"{self.url}/generate"
        self._api_key: str | None = options.get("api_key")
        given = {**options, "host": host, "port": port, "log_level": log_level}
        # By a file of this user's, because others can read a command line, and a key may be in it.
        with tempfile.NamedTemporaryFile("w", prefix="sglang-", suffix=".json") as file:
            json.dump({name: value for name, value in given.items() if value is not None}, file)
            file.flush()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sglang.launch_server", "--config", file.name],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # errors come on the other stream
            )
            self._owned = contextlib.ExitStack()  # what ends with this, the last first
            self._owned.callback(self._end_process)
            atexit.register(self.shutdown)
            try:
                with contextlib.closing(HttpClient(self.url, self._api_key)) as http:
                    self._await_ready(http, launch_timeout)
                self.endpoint = RuntimeEndpoint(self.url, self._api_key)
                self._owned.callback(self.endpoint.shutdown)
            except BaseException:
                self.shutdown()
                raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def shutdown(self) -> None:
        """Ends the server and the connections to it; does nothing the second time."""
        atexit.unregister(self.shutdown)
        self._owned.close()

    def generate(  # noqa: PLR0913
        self,
        prompt: str | list[str],
        sampling_params: dict[str, Any] | None = None,
        return_logprob: bool | list[bool] | None = None,
        logprob_start_len: int | list[int] | None = None,
        top_logprobs_num: int | list[int] | None = None,
        lora_path: str | list[str | None] | None = None,
        session_id: str | None = None,
    ) -> str:
        """The reply of `/generate` as JSON text. An aborted answer raises."""
        body = {
            "text": prompt,
            "sampling_params": sampling_params or {},
            "return_logprob": return_logprob,
            "logprob_start_len": logprob_start_len,
            "top_logprobs_num": top_logprobs_num,
            "lora_path": lora_path,
            "session_id": session_id,
        }
        given = {name: value for name, value in body.items() if value is not None}
        return json.dumps(self.endpoint.ask(given))

    async def async_generate(
        self, prompt: str, sampling_params: dict[str, Any] | None = None
    ) -> AsyncIterator[str]:
        """The pieces of one answer, as they come."""
        import asyncio

        body = {"text": prompt, "sampling_params": sampling_params or {}}
        pieces = self.endpoint.ask_stream(body)
        while (told := await asyncio.to_thread(next, pieces, None)) is not None:
            if told[0]:
                yield told[0]

    def encode(self, prompt: str | list[str]) -> str:
        """The reply of `/encode` as JSON text, see `RuntimeEndpoint.encode`."""
        return json.dumps(self.endpoint.encode(prompt))

    def get_tokenizer(self) -> Any:
        """The model's tokenizer: a `sglang_router.text.Tokenizer`, as the server uses it."""
        text = import_sdk("sglang_router.text", "sglang-router", "Runtime")
        info = self.endpoint.model_info
        return text.Tokenizer(info.get("tokenizer_path") or info["model_path"])

    def cache_prefix(self, prefix: str) -> None:
        self.endpoint.cache_prefix(prefix)

    def flush_cache(self) -> None:
        self.endpoint.flush_cache()

    def start_profile(self) -> None:
        self.endpoint.start_profile()

    def stop_profile(self) -> None:
        self.endpoint.stop_profile()

    def get_server_info(self) -> dict[str, Any]:
        return self.endpoint.get_server_info()

    def __enter__(self) -> "Runtime":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()

    def _await_ready(self, http: HttpClient, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        pause = threading.Event()
        while not http.answers("/health_generate", PROBE_TIMEOUT):
            if (code := self._process.poll()) is not None:
                raise RuntimeError(
                    f"the server ended with code {code} before it was ready; it has said why, and "
                    'says more with log_level="info"'
                )
            if time.monotonic() >= deadline:
                raise TimeoutError(
                    f"the server was not ready after {timeout:g} s; raise launch_timeout, or look "
                    'at what it does with log_level="info"'
                )
            pause.wait(POLL_INTERVAL)

    def _end_process(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(END_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def _url(host: str, port: int) -> str:
    reached = REACHED.get(host, host)
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"


def _free_port(host: str) -> int:
    """The first that a server on `host` can have."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        for port in range(FIRST_PORT, LAST_PORT):
            if _is_free(family, (address[0], port, *address[2:])):
                return port
    except OSError as error:
        raise ValueError(
            f"host {host!r} is no address that a server of this machine can have: {error}"
        ) from error
    raise RuntimeError(f"no port from {FIRST_PORT} to {LAST_PORT - 1} is free; pass port=…")


def _is_free(family: int, address: tuple[Any, ...]) -> bool:
    with socket.socket(family) as probe:
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
        return True
