"""A scheduler process that plays: it answers by the first token of a prompt."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq

from sglang.srt.core.messages import (
    AbortInput,
    ControlInput,
    ControlOutput,
    Failed,
    FinishReason,
    GenerateInput,
    LoadSnapshot,
    RequestOutput,
    SchedulerInput,
    ShutdownInput,
    StepOutput,
)
from sglang.srt.entrypoints.engine import SchedulerProcess
from sglang.srt.server_args import PortArgs, ServerArgs
from tests.wire.fake_scheduler import ready_message

ANSWERS, REFUSES, WAITS, DIES = 1, 2, 3, 4  # first tokens
Launch = Callable[[ServerArgs, PortArgs], SchedulerProcess]


def launcher(*, failure: str = "") -> Launch:
    """Stands in for `_launch_subprocesses`; `failure`: why the model cannot be loaded."""

    def launch(_args: ServerArgs, ports: PortArgs) -> SchedulerProcess:
        process = multiprocessing.get_context("spawn").Process(
            target=play, args=(ports, failure), daemon=True
        )
        process.start()
        return SchedulerProcess(process)

    return launch


def play(ports: PortArgs, failure: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    context = zmq.Context()
    pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    pull.connect(ports.scheduler_input_ipc_name)
    push.connect(ports.scheduler_output_ipc_name)

    def send(value: object) -> None:
        push.send(msgspec.msgpack.encode(value))

    if failure:
        send(Failed(message=failure))
        push.close()
        context.term()
        raise SystemExit(1)
    send(ready_message(Path("/nowhere")))
    decoder = msgspec.msgpack.Decoder(SchedulerInput)
    while True:
        value = decoder.decode(pull.recv())
        match value:
            case GenerateInput():
                _answer(value, send)
            case AbortInput():
                outputs = [
                    _end(rid, FinishReason(type="abort", message="gone")) for rid in value.rids
                ]
                send(StepOutput(outputs=outputs, load=LoadSnapshot()))
            case ControlInput():
                send(ControlOutput(id=value.id, result={"name": value.name, "args": value.args}))
            case ShutdownInput():
                return


def _answer(wish: GenerateInput, send: Callable[[object], None]) -> None:
    kind = wish.input_ids[0]
    if kind == DIES:
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == WAITS:
        return
    reason = FinishReason(type="length")
    if kind == REFUSES:
        reason = FinishReason(type="abort", message="no room", status_code=503)
    send(StepOutput(outputs=[_end(wish.rid, reason)], load=LoadSnapshot()))


def _end(rid: str, reason: FinishReason) -> RequestOutput:
    return RequestOutput(rid=rid, finish=reason)
