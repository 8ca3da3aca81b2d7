"""The launcher's side of the scheduler process: requests go out, news comes in."""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import Enum

import msgspec
import zmq
import zmq.asyncio

from sglang.srt.core.messages import (
    PROTOCOL_VERSION,
    QUEUE_FULL,
    AbortInput,
    ControlInput,
    ControlOutput,
    Failed,
    GenerateInput,
    LoadProgress,
    LoadSnapshot,
    Ready,
    SchedulerInput,
    SchedulerOutput,
    ShutdownInput,
    StepOutput,
)
from sglang.srt.entrypoints.kv_event_log import BUFFER_STEPS, KvEventLog
from sglang.srt.entrypoints.open_streams import OpenStreams
from sglang.srt.entrypoints.output_stream import OutputStream
from sglang.srt.observability.answer_watch import Watches
from sglang.srt.server_args import PortArgs

logger = logging.getLogger(__name__)
CONTROL_TIMEOUT = 60.0  # seconds
NO_CONTEXT: Mapping[str, str] = {}


class WorkerState(Enum):
    LOADING = "loading"
    READY = "ready"
    SILENT = "silent"  # was ready, and gives no sign of life for now
    DRAINING = "draining"
    FAILED = "failed"


class SchedulerUnavailable(Exception):
    """The scheduler process cannot take or finish work: loading, draining or gone."""


class QueueFull(Exception):
    """As many requests wait as may; the text says so."""


class SchedulerClient:
    """Owns both sockets, the requests under way and the worker's state.

    `run` must be running for anything to be answered. All methods belong to its event loop.
    """

    def __init__(
        self,
        ports: PortArgs,
        on_progress: Callable[[LoadProgress], None] | None = None,
        max_queued: int | None = None,
        kv_buffer_steps: int = BUFFER_STEPS,
    ) -> None:
        """`max_queued`: answers that may be under way beyond those that can run at once.
        `kv_buffer_steps`: batches of KV events that can be replayed.
        """
        self._context = zmq.asyncio.Context()
        # PUSH is used without asyncio: with no high-water mark a send never waits.
        self._push = zmq.Socket(zmq.Context.shadow(self._context.underlying), zmq.PUSH)
        self._push.set_hwm(0)
        self._push.setsockopt(zmq.LINGER, 0)
        self._push.bind(ports.scheduler_input_ipc_name)
        self._pull = self._context.socket(zmq.PULL)
        self._pull.set_hwm(0)
        self._pull.setsockopt(zmq.LINGER, 0)
        self._pull.bind(ports.scheduler_output_ipc_name)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(SchedulerOutput)
        self._streams = OpenStreams()
        self.idle = self._streams.idle  # set while no request runs
        self._max_queued = max_queued
        self._controls: dict[int, asyncio.Future[dict[str, object]]] = {}
        self._control_ids = itertools.count(1)
        self._on_progress = on_progress
        self._failed = asyncio.Event()
        self.state = WorkerState.LOADING
        self.reason = "starting"  # why the worker is not ready, in words
        self.load = LoadSnapshot()
        self.kv_events = KvEventLog(kv_buffer_steps)
        self.watches = Watches(None, ())  # of the answers from now on
        self.on_durations: Callable[[Mapping[str, Sequence[float]]], None] = lambda _: None
        self.last_receive_time = 0.0  # seconds since the epoch
        self.num_received = 0  # messages of the scheduler
        self.became_ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()

    # -------------------------------------------------------------- life

    async def run(self) -> None:
        """Receives until cancelled."""
        while True:
            frame = await self._pull.recv()
            self.last_receive_time = time.time()
            self.num_received += 1
            if self.state is WorkerState.SILENT:
                logger.warning("The scheduler answers again.")
                self.state, self.reason = WorkerState.READY, ""
            self._dispatch(self._decoder.decode(frame))

    @property
    def ready(self) -> Ready:
        """What the scheduler said about itself. Only after it became ready."""
        return self.became_ready.result()

    @property
    def num_running(self) -> int:
        """Requests (not answers) that are not finished."""
        return len(self._streams)

    def drain(self) -> None:
        """From now on new requests are refused; running ones go on."""
        if self.state is not WorkerState.FAILED:
            self.state, self.reason = WorkerState.DRAINING, "the worker is shutting down"

    def ping(self) -> None:
        """Asks for any message; the answer's arrival is all that counts."""
        self._send_if_alive(ControlInput(id=next(self._control_ids), name="loads"))

    def suspect(self, reason: str) -> None:
        """New requests are refused until the scheduler is heard again; running ones wait."""
        if self.state is WorkerState.READY:
            logger.warning("New requests are refused: %s.", reason)
            self.state = WorkerState.SILENT
        if self.state is WorkerState.SILENT:
            self.reason = reason

    async def wait_failed(self, timeout: float) -> None:
        """Returns once the scheduler said why it failed, or after `timeout` seconds."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._failed.wait(), timeout)

    def fail(self, reason: str) -> None:
        """The scheduler is gone: ends everything that waits for it."""
        if self.state is WorkerState.FAILED:
            return
        self.state, self.reason = WorkerState.FAILED, reason
        self._failed.set()
        error = SchedulerUnavailable(reason)
        self._streams.fail(error)
        self.kv_events.close(reason)
        for future in self._controls.values():
            if not future.done():
                future.set_exception(error)
        if not self.became_ready.done():
            self.became_ready.set_exception(error)
            self.became_ready.exception()  # nobody has to wait for it

    def close(self) -> None:
        self._push.close()
        self._pull.close()
        self._context.term()

    # -------------------------------------------------------------- requests

    @contextmanager
    def open(
        self,
        request_id: str,
        inputs: Sequence[GenerateInput],
        context: Mapping[str, str] = NO_CONTEXT,
    ) -> Iterator[OutputStream]:
        """Starts the answers of a request. Those unfinished when the block is left are aborted.

        `context` is the caller's W3C trace context, by header. Raises QueueFull, DuplicateRequest
        or SchedulerUnavailable.
        """
        if self.state is not WorkerState.READY:
            raise SchedulerUnavailable(self.reason)
        # The scheduler counts too, but looks only between steps, and the socket has no limit.
        if self._max_queued is not None:
            most = self.ready.max_running_requests + self._max_queued
            if self._streams.num_unfinished + len(inputs) > most:
                raise QueueFull(QUEUE_FULL)
        watches = self.watches.begin(inputs, context)
        stream = self._streams.open(request_id, [entry.rid for entry in inputs], watches)
        try:
            for entry in inputs:
                self._send(entry)
            yield stream
        finally:
            for watch in watches.values():
                watch.close()
            if unfinished := self._streams.close(request_id, stream):
                self._send_if_alive(AbortInput(rids=unfinished, message="The client is gone"))

    def abort(self, request_id: str, message: str) -> bool:
        """Ends all answers of a request at the next step. False when no such request runs."""
        rids = self._streams.answers_of(request_id)
        if rids:
            self._send(AbortInput(rids=rids, message=message))
        return bool(rids)

    def abort_all(self, message: str) -> int:
        """Ends every request; returns how many ran."""
        running = self.num_running
        if running:
            self._send(AbortInput(all=True, message=message))
        return running

    # -------------------------------------------------------------- administration

    async def control(
        self, name: str, args: dict[str, object], timeout: float = CONTROL_TIMEOUT
    ) -> dict[str, object]:
        """An operation of the scheduler. ValueError: it refused, the text says why."""
        if self.state in (WorkerState.LOADING, WorkerState.FAILED):
            raise SchedulerUnavailable(self.reason)
        control_id = next(self._control_ids)
        future = asyncio.get_running_loop().create_future()
        self._controls[control_id] = future
        try:
            self._send(ControlInput(id=control_id, name=name, args=args))
            return await asyncio.wait_for(future, timeout)
        except asyncio.TimeoutError:
            raise SchedulerUnavailable(
                f"the scheduler did not answer {name} within {timeout:g} s"
            ) from None
        finally:
            del self._controls[control_id]

    def shut_down(self) -> None:
        """Asks the scheduler to leave its loop. Silent when it is gone already."""
        self._send_if_alive(ShutdownInput())

    def _send(self, value: SchedulerInput) -> None:
        try:
            self._push.send(self._encoder.encode(value), zmq.NOBLOCK)
        except zmq.Again:
            raise SchedulerUnavailable("the scheduler process is not connected") from None

    def _send_if_alive(self, value: SchedulerInput) -> None:
        if self.state is WorkerState.FAILED:
            return
        try:
            self._send(value)
        except SchedulerUnavailable:
            logger.debug("the scheduler is gone before it was told %s", value)

    # -------------------------------------------------------------- news

    def _dispatch(self, value: SchedulerOutput) -> None:
        match value:
            case StepOutput():
                self.load = value.load
                self.kv_events.append(value.kv_events)
                if value.durations:
                    self.on_durations(value.durations)
                for output in value.outputs:
                    self._streams.deliver(output)
            case ControlOutput():
                self._answer(value)
            case LoadProgress():
                self.reason = describe_progress(value)
                if self._on_progress:
                    self._on_progress(value)
            case Ready():
                self._become_ready(value)
            case Failed():
                self.fail(value.message)

    def _answer(self, value: ControlOutput) -> None:
        future = self._controls.get(value.id)
        if future is None or future.done():
            return
        if value.error is not None:
            future.set_exception(ValueError(value.error))
        else:
            future.set_result(value.result)

    def _become_ready(self, value: Ready) -> None:
        if value.protocol_version != PROTOCOL_VERSION:
            self.fail(
                f"launcher and scheduler speak versions {PROTOCOL_VERSION} and "
                f"{value.protocol_version} of the protocol; install one release of sglang"
            )
            return
        self.load.max_total_num_tokens = value.max_total_num_tokens
        self.load.max_running_requests = value.max_running_requests
        if self.state is WorkerState.LOADING:
            self.state, self.reason = WorkerState.READY, ""
        if not self.became_ready.done():
            self.became_ready.set_result(value)


def describe_progress(value: LoadProgress) -> str:
    """`loading weights: 45 of 98 MB`."""
    if not value.total_bytes:
        return value.phase
    done, total = value.done_bytes / 1e6, value.total_bytes / 1e6
    return f"{value.phase}: {done:.0f} of {total:.0f} MB"
