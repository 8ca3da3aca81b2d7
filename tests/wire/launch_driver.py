"""A launcher whose scheduler process is played: run as a program, with the launcher's flags.

The scheduler's module is replaced when this file is imported, which the spawned child does first.
`--weight-version` chooses how the scheduler behaves.
"""

import sys
import types
from pathlib import Path
from typing import Any

import msgspec
import zmq

from sglang.srt.core.messages import (
    AbortInput,
    Failed,
    FinishReason,
    GenerateInput,
    LoadProgress,
    LoadSnapshot,
    RequestOutput,
    SchedulerInput,
    ShutdownInput,
    StepOutput,
)

HEAVY = ("torch", "transformers", "triton")


class Played:
    """Answers each request with two tokens; the second one only on `--weight-version quick`, or
    when a file `go` appears beside the model, or never when the request is aborted.
    """

    def __init__(self, args: Any, ports: Any) -> None:
        context = zmq.Context()
        self._pull = context.socket(zmq.PULL)
        self._pull.connect(ports.scheduler_input_ipc_name)
        self._push = context.socket(zmq.PUSH)
        self._push.connect(ports.scheduler_output_ipc_name)
        self._folder = Path(args.model_path)
        self._quick = args.weight_version == "quick"
        self._running: list[str] = []

    def send(self, value: Any) -> None:
        self._push.send(msgspec.msgpack.encode(value))

    def step(self, *outputs: RequestOutput) -> None:
        self.send(StepOutput(outputs=list(outputs), load=LoadSnapshot()))

    def serve(self) -> None:
        decoder = msgspec.msgpack.Decoder(SchedulerInput)
        while True:
            if self._quick or (self._folder / "go").exists():
                self._finish_all()
            if not self._pull.poll(20):
                continue
            match decoder.decode(self._pull.recv()):
                case GenerateInput() as request:
                    self._running.append(request.rid)
                    self.step(RequestOutput(rid=request.rid, token_ids=[1], completion_tokens=1))
                case AbortInput() as abort:
                    self._abort(self._running if abort.all else abort.rids, abort.message)
                case ShutdownInput():
                    return

    def _finish_all(self) -> None:
        reason = FinishReason(type="length")
        self.step(
            *(
                RequestOutput(rid=rid, token_ids=[2], completion_tokens=2, finish=reason)
                for rid in self._running
            )
        )
        self._running.clear()

    def _abort(self, rids: list[str], message: str) -> None:
        reason = FinishReason(type="abort", message=message)
        self.step(*(RequestOutput(rid=rid, finish=reason) for rid in rids))
        self._running = [rid for rid in self._running if rid not in set(rids)]


def run_scheduler_process(args: Any, ports: Any) -> None:
    from tests.wire.fake_scheduler import ready_message

    played = Played(args, ports)
    played.send(LoadProgress(phase="loading weights", done_bytes=1, total_bytes=2))
    if args.weight_version == "broken":
        played.send(Failed(message="the weights lack a tensor"))
        sys.exit(1)
    if args.weight_version == "bug":
        raise RuntimeError("a mistake of ours")
    played.send(ready_message(Path(args.model_path)))
    played.serve()


module = types.ModuleType("sglang.srt.managers.scheduler")
module.run_scheduler_process = run_scheduler_process  # type: ignore[attr-defined]
sys.modules[module.__name__] = module

if __name__ == "__main__":
    from sglang.srt.entrypoints.launch import launch_server
    from sglang.srt.server_args import prepare_server_args

    code = launch_server(prepare_server_args(sys.argv[1:]))
    print("heavy modules:", [name for name in HEAVY if name in sys.modules])
    sys.exit(code)
