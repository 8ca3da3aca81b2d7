"""The worker's own HTTP server: the gateway from the wheel `sglang_router`, before one worker."""

import asyncio
import contextlib
import http.client
import importlib
import importlib.util
import threading
from collections.abc import Sequence
from typing import Any

from sglang.srt.arg_groups.declaration import Choices, Option
from sglang.srt.server_args import ServerArgs

WHEEL = "sglang_router"
# Headings of the gateway's options that mean something before a single worker.
GROUPS = ("Requests", "Metrics", "Logs")
READY_INTERVAL = 0.1  # seconds between two looks
READY_TIMEOUT = 5.0  # seconds
KINDS = {"int": int, "float": float, "bool": bool, "str": str, "list": list}


class FrontDoorUnavailable(Exception):
    """The wheel is not installed; the text says what to do."""


def front_door_options() -> Sequence[Option]:
    """The HTTP server's options, as the wheel declares them; none without the wheel."""
    if importlib.util.find_spec(WHEEL) is None:
        return ()
    schema = importlib.import_module(WHEEL).option_schema()
    return [_option(entry) for entry in schema if entry["group"] in GROUPS]


def _option(entry: dict[str, Any]) -> Option:
    choices = entry["choices"]
    return Option(
        name=entry["name"],
        kind=KINDS[entry["type"]],
        default=entry["default"],
        help=entry["help"],
        group=f"HTTP server: {entry['group'].lower()}",
        nullable=entry["default"] is None,
        aliases=tuple(entry["aliases"]),
        choices=Choices.of(*choices) if choices else None,
        variable_name=entry["env"],
    )


def _keys(args: ServerArgs) -> dict[str, str | None]:
    return {"api_key": args.api_key, "admin_api_key": args.admin_api_key}


def _traces(args: ServerArgs) -> dict[str, Any]:
    if not args.enable_trace:
        return {}
    return {"enable_trace": True, "otlp_traces_endpoint": args.otlp_traces_endpoint}


class FrontDoor:
    """An HTTP server that listens. `ended` is set when it serves no more, whatever the reason."""

    def __init__(self, gateway: Any, host: str, port: int) -> None:
        self._gateway = gateway
        self._host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        self._port = port
        self._loop = asyncio.get_running_loop()
        self.ended = asyncio.Event()
        self.error: str | None = None
        threading.Thread(target=self._watch, name="front-door-watch", daemon=True).start()

    def stop(self) -> None:
        """Readiness goes off, running requests finish, then it ends. Returns at once."""
        self._gateway.stop()

    async def until_ready(self) -> None:
        """Returns once the server has found its worker and answers requests."""
        while not await asyncio.to_thread(self._answers_ready):
            await asyncio.sleep(READY_INTERVAL)

    def _answers_ready(self) -> bool:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=READY_TIMEOUT)
        try:
            connection.request("GET", "/readiness")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _watch(self) -> None:
        try:
            self._gateway.wait()
        except (RuntimeError, OSError, ValueError) as error:
            self.error = str(error)
        with contextlib.suppress(RuntimeError):  # the loop is closed, nobody waits
            self._loop.call_soon_threadsafe(self.ended.set)


async def open_front_door(args: ServerArgs, worker_socket: str) -> FrontDoor:
    """Starts to serve HTTP before the worker at a Unix socket.

    Raises FrontDoorUnavailable without the wheel, OSError when the port is taken, and ValueError
    for a wrong option.
    """
    if importlib.util.find_spec(WHEEL) is None:
        raise FrontDoorUnavailable(
            "the HTTP server is in the package sglang-router, which is not installed; install its "
            "wheel, or serve gRPC only with --grpc-mode"
        )
    options = {
        **args.front_door,
        "host": args.host,
        "port": args.port,
        "log_level": args.log_level,
        "shutdown_grace_period_secs": args.shutdown_grace_period_secs,
        **_traces(args),
        **{name: key for name, key in _keys(args).items() if key},
    }
    gateway = importlib.import_module(WHEEL).FrontDoor(options, worker_socket)
    await asyncio.to_thread(gateway.start)
    return FrontDoor(gateway, args.host, args.port)
