"""`smg server`: engine workers on this machine and a gateway in front of them, in one command."""

import argparse
import importlib.util
import json
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType

from sglang_router import local_net
from sglang_router.fleet import Child, Fleet
from sglang_router.output import may_go_unread

ENGINE_COMMAND = (sys.executable, "-m", "sglang.launch_server")
GATEWAY_COMMAND = (sys.executable, "-m", "sglang_router.launch_router")
ROUTER_PREFIX = "--router-"
# Without requests a worker ends at once; this is for one that hangs.
WORKER_GRACE_SECONDS = 10.0
# The gateway bounds its own drain; this is for one that hangs.
GATEWAY_MARGIN_SECONDS = 5.0
POLL_SECONDS = 0.2


class LaunchError(Exception):
    """The server cannot start or has to end. The text is one sentence for the user."""


@dataclass(frozen=True)
class Commands:
    """What is started."""

    engine: Sequence[str] = ENGINE_COMMAND
    gateway: Sequence[str] = GATEWAY_COMMAND


class StopSignal:
    """Counts the signals that ask this process to end."""

    def __init__(self) -> None:
        self._first = threading.Event()
        self._second = threading.Event()

    def listen(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        # Under nohup it is ignored, and stays so.
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._on_signal)

    def wait(self, seconds: float) -> bool:
        """Whether a signal came by now or within `seconds`."""
        return self._first.wait(seconds)

    def came_twice(self) -> bool:
        return self._second.is_set()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        (self._second if self._first.is_set() else self._first).set()


def main(argv: Sequence[str] | None = None, commands: Commands | None = None) -> int:
    """Serves until a signal or until nothing is left. The exit code is 0 only after a signal."""
    router_flags, others = split_router_flags(sys.argv[1:] if argv is None else argv)
    args, engine_flags = build_parser().parse_known_args(others)
    stop = StopSignal()
    stop.listen()
    try:
        if commands is None:
            require_engine()
        local_net.require_free_port(args.host, args.port)
        server = Server(args, commands or Commands(), stop)
        try:
            server.start(engine_flags, router_flags)
            server.run()
        finally:
            server.end()
    except (LaunchError, local_net.PortError) as error:
        print(f"smg server: {error}", file=sys.stderr)
        return 1
    return 0


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="smg server",
        allow_abbrev=False,
        description="Starts engine workers on this machine and a gateway in front of them.",
        epilog="Flags of the gateway take the prefix --router- (see `smg launch --help`); "
        "all other flags go to the workers (see `python -m sglang.launch_server --help`).",
    )
    parser.add_argument("--host", default="127.0.0.1", help="Address of the gateway.")
    parser.add_argument("--port", type=positive, default=30000, help="Port of the gateway.")
    parser.add_argument("--api-key", help="Key that clients must send as a bearer token.")
    parser.add_argument("--admin-api-key", help="Key for administrative routes in its place.")
    parser.add_argument(
        "--enable-trace",
        action="store_true",
        help="Send spans of every request, the workers' among them, to a collector.",
    )
    parser.add_argument(
        "--otlp-traces-endpoint",
        default="localhost:4317",
        help="Collector that takes OTLP over gRPC without TLS, as HOST:PORT.",
    )
    parser.add_argument(
        "--dp-size",
        "--data-parallel-size",
        type=positive,
        default=1,
        help="Workers; each holds the whole model and has an equal share of the CPU cores.",
    )
    parser.add_argument(
        "--worker-startup-timeout-secs",
        type=positive,
        default=1800,
        help="Seconds until every worker must be ready, downloads included.",
    )
    parser.add_argument(
        "--shutdown-grace-period-secs",
        type=positive,
        default=180,
        help="Seconds that running requests have at the end.",
    )
    return parser


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def split_router_flags(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """(flags of the gateway with their values and without the prefix, all the others)"""
    router: list[str] = []
    others: list[str] = []
    current = others
    for token in argv:
        if token.startswith(ROUTER_PREFIX):
            current = router
            token = "--" + token.removeprefix(ROUTER_PREFIX)
        elif token.startswith("--"):
            current = others
        current.append(token)
    return router, others


def require_engine() -> None:
    if importlib.util.find_spec("sglang") is None:
        raise LaunchError(
            "the package sglang, which has the engine, is not installed in this Python; install "
            "it, or put a gateway in front of running workers with "
            "`smg launch --worker-urls grpc://host:port`"
        )


def worker_threads(num_workers: int) -> dict[str, str]:
    """Environment that splits the CPU cores evenly, unless the user has decided."""
    if "OMP_NUM_THREADS" in os.environ:  # noqa: TID251 (a user's choice for the workers wins)
        return {}
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return {"OMP_NUM_THREADS": str(max(1, cores // num_workers))}


class Server:
    """The workers and their gateway, from start to end."""

    def __init__(self, args: argparse.Namespace, commands: Commands, stop: StopSignal) -> None:
        self._args = args
        self._commands = commands
        self._stop = stop
        self._started = time.monotonic()
        self._fleet = Fleet(sys.stderr)
        self._workers: list[Child] = []
        self._worker_urls: list[str] = []
        self._gateway: Child | None = None
        self._http = local_net.Http(args.host, args.port, args.api_key)

    def start(self, engine_flags: Sequence[str], router_flags: Sequence[str]) -> None:
        count = self._args.dp_size
        env = worker_threads(count)
        threads = f", {env['OMP_NUM_THREADS']} CPU threads each" if env else ""
        print(f"Starting {plural(count, 'worker')}{threads}, and the gateway.", file=sys.stderr)
        for index, port in enumerate(local_net.free_port_pairs(count)):
            place = ["--grpc-mode", "--host", "127.0.0.1", "--port", str(port)]
            command = [*self._commands.engine, *engine_flags, *place, *self._trace_flags()]
            self._workers.append(self._fleet.start(f"worker {index}", command, env))
            self._worker_urls.append(f"grpc://127.0.0.1:{port}")
        # In the environment, because everybody can read a command line.
        keys = {"SMG_API_KEY": self._args.api_key, "SMG_ADMIN_API_KEY": self._args.admin_api_key}
        given = {name: key for name, key in keys.items() if key is not None}
        self._gateway = self._fleet.start("gateway", self._gateway_command(router_flags), given)

    def run(self) -> None:
        """Waits until all is ready, says so, and watches over it until a signal comes."""
        deadline = self._started + self._args.worker_startup_timeout_secs
        while not self._is_ready():
            if self._stop.wait(POLL_SECONDS):
                return
            self._require_all_running()
            if time.monotonic() > deadline:
                limit = self._args.worker_startup_timeout_secs
                raise LaunchError(
                    f"not ready after {limit} s; allow more with --worker-startup-timeout-secs, "
                    "or see above what the workers wait for"
                )
        print(self._ready_block(), flush=True)
        ended: set[str] = set()
        while not self._stop.wait(POLL_SECONDS):
            self._report_ended(ended)

    def end(self) -> None:
        """Ends the gateway, which drains, and then the workers. Nothing is left after this."""
        grace = self._args.shutdown_grace_period_secs + GATEWAY_MARGIN_SECONDS
        self._fleet.end({"gateway": grace, "worker": WORKER_GRACE_SECONDS}, self._stop.came_twice)

    def _gateway_command(self, router_flags: Sequence[str]) -> list[str]:
        return [
            *self._commands.gateway,
            *("--host", self._args.host),
            *("--port", str(self._args.port)),
            *("--shutdown-grace-period-secs", str(self._args.shutdown_grace_period_secs)),
            *self._trace_flags(),
            *router_flags,
            "--worker-urls",
            *self._worker_urls,
        ]

    def _trace_flags(self) -> list[str]:
        """What the gateway and its workers call alike."""
        if not self._args.enable_trace:
            return []
        return ["--enable-trace", "--otlp-traces-endpoint", self._args.otlp_traces_endpoint]

    def _is_ready(self) -> bool:
        answer = self._http.get("/readiness")
        healthy = answer.get("healthy_workers") if isinstance(answer, dict) else None
        return healthy == len(self._workers)

    def _require_all_running(self) -> None:
        for child in (*self._workers, self._gateway):
            if child is not None and child.exit_code is not None:
                child.finish_output(timeout=1.0)
                raise LaunchError(
                    f"{child.name} ended {ending(child.exit_code)} before the server was ready; "
                    "its last lines above say why"
                )

    def _report_ended(self, ended: set[str]) -> None:
        """Goes on while the gateway and one worker are left: requests go elsewhere."""
        for worker in self._workers:
            if worker.exit_code is not None and worker.name not in ended:
                ended.add(worker.name)
                left = len(self._workers) - len(ended)
                print(
                    f"smg server: {worker.name} ended {ending(worker.exit_code)}; "
                    f"{plural(left, 'worker')} left",
                    file=sys.stderr,
                )
        if len(ended) == len(self._workers):
            raise LaunchError("no worker is left")
        if self._gateway is not None and self._gateway.exit_code is not None:
            raise LaunchError(f"the gateway ended {ending(self._gateway.exit_code)}")

    def _ready_block(self) -> str:
        url = self._http.url
        model = self._model_name()
        message = {"role": "user", "content": "Hello"}
        body = json.dumps({"model": model, "messages": [message], "max_tokens": 64})
        curl = ["curl", f"{url}/v1/chat/completions", "-H", "Content-Type: application/json"]
        key = "" if self._args.api_key is None else ' -H "Authorization: Bearer $API_KEY"'
        took = time.monotonic() - self._started
        workers = plural(len(self._workers), "worker")
        addresses = ", ".join(self._worker_urls)
        return (
            f"Ready after {took:.1f} s: {url} serves {model} with {workers} ({addresses}). Try:\n"
            f"  {shlex.join([*curl, '-d', body])}{key}"
        )

    def _model_name(self) -> str:
        answer = self._http.get("/v1/models")
        models = answer.get("data", []) if isinstance(answer, dict) else []
        return str(models[0]["id"]) if models else "default"


def ending(exit_code: int) -> str:
    if exit_code < 0:
        return f"by signal {signal.Signals(-exit_code).name}"
    return f"with exit code {exit_code}"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


if __name__ == "__main__":
    with may_go_unread():
        sys.exit(main())
