"""The launcher process of a worker: starts its parts, serves until told to end, ends them."""

import asyncio
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

from sglang.srt.core.messages import LoadProgress
from sglang.srt.entrypoints import engine, front_door, grpc_server, model_source, sidecar
from sglang.srt.entrypoints.demo_model import ModelError
from sglang.srt.entrypoints.event_publisher import Publishing
from sglang.srt.entrypoints.preflight import LaunchError, check_launch
from sglang.srt.entrypoints.pulse import Pulse
from sglang.srt.entrypoints.scheduler_client import SchedulerClient, WorkerState
from sglang.srt.entrypoints.service import EngineService
from sglang.srt.entrypoints.work_folder import work_folder
from sglang.srt.environ import envs
from sglang.srt.observability.log_setup import set_up_logging
from sglang.srt.observability.progress import ProgressLine
from sglang.srt.server_args import PortArgs, ServerArgs, prepare_server_args, with_model_path

logger = logging.getLogger(__name__)
ABORT_TIMEOUT = 5.0  # seconds for aborted requests to tell their clients
LAST_WORDS_TIMEOUT = 0.5  # seconds for a dead scheduler's last message to arrive
FAILURE = 1


def main(argv: Sequence[str], prog: str = "python -m sglang.launch_server") -> int:
    """Serves with the options of a command line; returns the exit code."""
    args = prepare_server_args(argv, prog=prog, extra=front_door.front_door_options)
    return launch_server(args)


def launch_server(args: ServerArgs) -> int:
    """Serves until a signal or a failure; returns the exit code. Failures are one sentence."""
    if not args.sealed:
        args.check_server_args()
    set_up_logging(args.log_level)
    progress = ProgressLine()
    try:
        check_launch(args)
        found = with_model_path(args, model_source.locate_model(args, progress.update))
        progress.close()
        with work_folder() as folder:
            return asyncio.run(_serve(found, folder, progress))
    except (LaunchError, ModelError, front_door.FrontDoorUnavailable, OSError, ValueError) as error:
        progress.close()
        logger.debug("the launch failed", exc_info=True)
        print(f"sglang: {error}", file=sys.stderr)
        return FAILURE
    except KeyboardInterrupt:
        progress.close()
        return 128 + signal.SIGINT


async def _serve(args: ServerArgs, folder: Path, progress: ProgressLine) -> int:
    def show(message: LoadProgress) -> None:
        progress.update(message.phase, message.done_bytes, message.total_bytes)

    start = time.monotonic()
    ports = PortArgs.in_folder(str(folder))
    client = SchedulerClient(ports, show, args.most_waiting, args.kv_events.buffer_steps)
    service = EngineService(args, client)
    worker_socket = str(folder / "grpc.sock")
    server = grpc_server.make_server(service, _grpc_addresses(args, worker_socket))
    try:
        publishing = Publishing(args.kv_events, client.kv_events)
    except (OSError, ValueError):
        client.close()
        raise
    process = engine._launch_subprocesses(args, ports)
    suspect_after = envs.SGLANG_HEALTH_CHECK_TIMEOUT.get()
    # The scheduler's own watchdog comes first: it can tell in which call the step is stuck.
    pulse = Pulse(client, suspect_after, args.watchdog_timeout + suspect_after)
    worker = WorkerLife(client, server, process, pulse, folder, publishing)
    try:
        await server.start()
        if args.grpc_mode:
            worker.sidecar = await sidecar.start_sidecar(service, args.host, args.port + 1)
        else:
            worker.door = await front_door.open_front_door(args, worker_socket)
        await worker.until_ready()
        progress.close()
        if client.state is WorkerState.READY and await worker.door_is_ready():
            _announce(args, client, time.monotonic() - start)
        return await worker.until_end(args.shutdown_grace_period_secs)
    finally:
        progress.close()
        await worker.end()
        await asyncio.to_thread(service.observers.shut_down)


def _grpc_addresses(args: ServerArgs, worker_socket: str) -> list[str]:
    host = f"[{args.host}]" if ":" in args.host else args.host
    if args.grpc_mode:
        return [f"{host}:{args.port}"]
    own = [f"unix:{worker_socket}"]
    return [*own, f"{host}:{args.grpc_port}"] if args.grpc_port is not None else own


def _announce(args: ServerArgs, client: SchedulerClient, seconds: float) -> None:
    scheme = "grpc" if args.grpc_mode else "http"
    host = f"[{args.host}]" if ":" in args.host else args.host
    ready = client.ready
    print(  # and no log line, which --log-level could hide
        f"Ready after {seconds:.1f} s: {scheme}://{host}:{args.port} serves "
        f"{args.served_model_name} (context {ready.model.context_len} tokens, "
        f"KV pool {ready.max_total_num_tokens} tokens).",
        flush=True,
    )


class WorkerLife:
    """The running parts of a worker, the signals that end it, and the order in which it ends."""

    def __init__(
        self,
        client: SchedulerClient,
        server: grpc.aio.Server,
        process: engine.SchedulerProcess,
        pulse: Pulse,
        folder: Path,
        publishing: Publishing,
    ) -> None:
        """`folder` holds the sockets, and goes with the worker even when it ends at once."""
        self.sidecar: asyncio.Server | None = None
        self.door: front_door.FrontDoor | None = None
        self._client = client
        self._server = server
        self._process = process
        self._folder = folder
        self._publishing = publishing
        self._receiving = asyncio.create_task(client.run())
        self._silent = asyncio.create_task(pulse.run())
        self._stop = asyncio.Event()
        self._dead = asyncio.Event()
        self._exit_code = 0
        loop = asyncio.get_running_loop()
        loop.add_reader(process.sentinel, self._on_child_end)
        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # `nohup` ignores it
            numbers.append(signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, self._on_signal, number)

    async def until_ready(self) -> None:
        """Returns when requests can be served, when the scheduler is dead, or on a signal."""
        await self._first_of(self._client.became_ready)

    async def door_is_ready(self) -> bool:
        """Waits until the front door, if there is one, has found the worker. False: it ends."""
        if self.door is not None:
            ready = asyncio.ensure_future(self.door.until_ready())
            await self._first_of(ready)
            return ready.done() or not ready.cancel()
        return not self._stop.is_set()

    async def until_end(self, grace: float) -> int:
        """Returns the exit code after a failure, or after a signal and the drain, which takes
        `grace` seconds at most.
        """
        await self._first_of()
        if self._dead.is_set() or self._receiving.done() or self._silent.done():
            await self._fail()
        elif self._stop.is_set():
            await self._drain(grace)
        else:
            reason = self.door.error if self.door and self.door.error else "no reason given"
            self._report_failure(f"the HTTP server ended by itself: {reason}")
        return self._exit_code

    async def end(self) -> None:
        """Ends every part; nothing of the worker is left afterwards."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._process.sentinel)
        if self.sidecar is not None:
            self.sidecar.close()
        if self.door is not None:
            self.door.stop()
            await self._wait_for(self.door.ended, ABORT_TIMEOUT)
        self._client.kv_events.close("the worker is shutting down")
        await self._publishing.end()
        await self._server.stop(ABORT_TIMEOUT)
        if not self._client.became_ready.done():
            self._process.kill()  # nothing to lose yet, and it may not listen for minutes
        self._client.shut_down()
        await asyncio.to_thread(self._process.end)
        tasks = (self._receiving, self._silent)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._client.close()

    async def _first_of(self, *others: "asyncio.Future[Any]") -> None:
        events = [self._stop, self._dead, *([self.door.ended] if self.door else [])]
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        tasks = [*waits, self._receiving, self._silent, *others]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def _fail(self) -> None:
        if self._receiving.done():
            self._client.fail(f"reading from the scheduler failed: {self._receiving.exception()!r}")
        elif not self._dead.is_set():
            self._client.fail(self._silent.result())
            self._process.kill()
        else:
            await self._client.wait_failed(LAST_WORDS_TIMEOUT)
            self._client.fail(self._process.describe_end())
        self._report_failure(self._client.reason)

    def _report_failure(self, reason: str) -> None:
        print(f"sglang: {reason}", file=sys.stderr)
        self._exit_code = FAILURE

    async def _drain(self, limit: float) -> None:
        """The front door first: what it has accepted still reaches the worker."""
        deadline = time.monotonic() + limit
        if self._client.num_running:
            logger.info(
                "Ending: running requests (%d) have %g s to finish; a second signal ends at once.",
                self._client.num_running, limit,
            )  # fmt: skip
        if self.door is not None:
            self.door.stop()
            # It has the same limit, and then tells its clients.
            await self._wait_for(self.door.ended, limit + ABORT_TIMEOUT)
        self._client.drain()
        if not await self._wait_for(self._client.idle, deadline - time.monotonic()):
            running = self._client.abort_all("The worker is shutting down")
            logger.warning("%d requests did not finish in time and are aborted.", running)
            await self._wait_for(self._client.idle, ABORT_TIMEOUT)

    async def _wait_for(self, event: asyncio.Event, seconds: float) -> bool:
        """Whether the event came in time. A dead scheduler ends the wait too."""
        waits = [asyncio.ensure_future(each.wait()) for each in (event, self._dead)]
        await asyncio.wait(waits, timeout=max(seconds, 0), return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        return event.is_set()

    def _on_signal(self, number: int) -> None:
        if self._stop.is_set():
            self._process.kill()
            shutil.rmtree(self._folder, ignore_errors=True)
            os._exit(128 + number)
        self._stop.set()

    def _on_child_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._process.sentinel)
        self._dead.set()
