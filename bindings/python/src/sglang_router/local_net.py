"""Ports of this machine, and plain HTTP to a server on it."""

import contextlib
import errno
import http.client
import json
import socket
from collections.abc import Iterator

TIMEOUT_SECONDS = 5.0
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


class PortError(Exception):
    """An address cannot be listened on. The text is one sentence for the user."""


def bare_host(host: str) -> str:
    """`[::1]`, as URLs have it, is `::1`."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def require_free_port(host: str, port: int) -> None:
    """Raises unless `host`:`port` can be listened on now."""
    host = bare_host(host)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, OverflowError) as error:
        raise PortError(
            f"--host {host} --port {port} is no address to listen on ({error})"
        ) from error
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen(1)
        except OSError as error:
            raise PortError(
                f"cannot listen on {host} port {port} ({error.strerror or error}); {_advice(error)}"
            ) from error


def _advice(error: OSError) -> str:
    if error.errno == errno.EADDRNOTAVAIL:
        return "--host is no address of this machine; 0.0.0.0 stands for all that it has"
    return "end what uses it, or choose another with --port"


def free_port_pairs(count: int) -> list[int]:
    """Ports p of 127.0.0.1 of which p and p + 1 are free, no two pairs overlapping."""
    found: list[int] = []
    # Held until all are found, so that the system offers none of them twice.
    with contextlib.ExitStack() as held:
        while len(found) < count:
            first = held.enter_context(bound(0))
            port = first.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                held.enter_context(bound(port + 1))
                found.append(port)
    return found


@contextlib.contextmanager
def bound(port: int) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as holder:
        holder.bind(("127.0.0.1", port))
        yield holder


class Http:
    """GET requests to one server on this machine, never through a proxy."""

    def __init__(self, host: str, port: int, api_key: str | None) -> None:
        host = bare_host(host)
        self._host = ANY_ADDRESS.get(host, host)
        self._port = port
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    def get(self, path: str) -> object | None:
        """The JSON body of a 200 answer, or its text; `None` for any other outcome."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_SECONDS)
        with contextlib.closing(connection):
            try:
                connection.request("GET", path, headers=self._headers)
                response = connection.getresponse()
                body = response.read()
            except (OSError, http.client.HTTPException):
                return None
        if response.status != http.HTTPStatus.OK:
            return None
        text = body.decode("utf-8", "replace")
        try:
            answer: object = json.loads(text)
        except ValueError:
            return text
        return "" if answer is None else answer
