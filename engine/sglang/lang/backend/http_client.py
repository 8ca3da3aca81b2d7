"""JSON over HTTP to one server, with bounded waits and errors in words."""

import ipaddress
import json
from collections.abc import Iterator
from typing import Any

import httpx

CONNECT_TIMEOUT = 10.0  # seconds
SHOWN_BODY_CHARS = 2000


class EndpointError(RuntimeError):
    """The server refused, failed, or did not answer. `status` is None without an answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class HttpClient:
    """Safe to use from many threads. The key is in the header only, never in a message."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        verify: str | bool | None = None,
        timeout: float = 600.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """`verify`: a file of certificates, or False to trust any. `timeout`: seconds that the
        server may be silent.
        """
        self.base_url = base_url.rstrip("/")
        self._timeout = timeout
        self._client = httpx.Client(
            base_url=self.base_url,
            headers={"authorization": f"Bearer {api_key}"} if api_key else {},
            verify=True if verify is None else _trust(verify),
            timeout=httpx.Timeout(timeout, connect=min(CONNECT_TIMEOUT, timeout), pool=None),
            # Programs bring their own limit: their threads.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            transport=transport,
            # A server on this machine is not asked through a proxy.
            trust_env=not _is_this_machine(httpx.URL(self.base_url).host),
        )

    def get(self, path: str, *, optional: bool = False) -> Any:
        """The parsed reply; text where it is no JSON. `optional`: not every server has the path."""
        return self._read("GET", path, self._send("GET", path), optional)

    def post(self, path: str, body: Any = None, *, optional: bool = False) -> Any:
        return self._read("POST", path, self._send("POST", path, body), optional)

    def answers(self, path: str, timeout: float) -> bool:
        """Whether a GET is answered 200."""
        try:
            return self._client.get(path, timeout=timeout).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def events(self, path: str, body: Any) -> Iterator[Any]:
        """The events of a streamed reply. One that ends without `[DONE]` raises."""
        try:
            with self._client.stream("POST", path, json=body) as reply:
                if reply.status_code != httpx.codes.OK:
                    reply.read()
                    self._read("POST", path, reply)
                for line in reply.iter_lines():
                    if not line.startswith("data:"):
                        continue
                    data = line.removeprefix("data:").strip()
                    if data == "[DONE]":
                        return
                    yield self._event(path, data)
        except httpx.TransportError as error:
            raise self._failure("POST", path, error) from error
        raise EndpointError(f"POST {self.base_url}{path}: the stream broke off")

    def close(self) -> None:
        self._client.close()

    def _send(self, method: str, path: str, body: Any = None) -> httpx.Response:
        try:
            return self._client.request(method, path, json=body)
        except httpx.TransportError as error:
            raise self._failure(method, path, error) from error

    def _read(self, method: str, path: str, reply: httpx.Response, optional: bool = False) -> Any:
        if optional and reply.status_code == httpx.codes.NOT_FOUND:
            raise EndpointError(
                f"the server at {self.base_url} has no {path}; not every server of this API does",
                reply.status_code,
            )
        if reply.status_code != httpx.codes.OK:
            raise EndpointError(
                f"{method} {self.base_url}{path} was answered {reply.status_code}: "
                f"{_message(reply.text)}",
                reply.status_code,
            )
        try:
            return reply.json()
        except ValueError:
            return reply.text

    def _event(self, path: str, data: str) -> Any:
        event = json.loads(data)
        if isinstance(event, dict) and "error" in event:
            raise EndpointError(f"POST {self.base_url}{path} failed: {_message(data)}")
        return event

    def _failure(self, method: str, path: str, error: httpx.TransportError) -> EndpointError:
        what = f"{method} {self.base_url}{path}"
        if isinstance(error, httpx.ReadTimeout):
            return EndpointError(f"{what}: the server was silent for {self._timeout:g} s")
        return EndpointError(f"{what}: {error or type(error).__name__}")


def _is_this_machine(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    # Nothing is at 0.0.0.0 or ::; who connects there reaches this machine.
    return address.is_loopback or address.is_unspecified


def _trust(verify: str | bool) -> Any:
    if isinstance(verify, bool):
        return verify
    import ssl

    return ssl.create_default_context(cafile=verify)


def _message(body: str) -> str:
    """The sentence in an error's body, or the body."""
    try:
        error = json.loads(body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return body[:SHOWN_BODY_CHARS].strip() or "no reason given"
