"""A worker whose scheduler is played by the test, over the real sockets and a real gRPC server."""

import asyncio
import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import msgspec
import zmq
import zmq.asyncio

from sglang.srt.core.messages import (
    PROTOCOL_VERSION,
    FinishReason,
    LoadSnapshot,
    ModelCard,
    Ready,
    RequestOutput,
    RequestTimes,
    SchedulerInput,
    StepOutput,
)
from sglang.srt.entrypoints import grpc_server, wire
from sglang.srt.entrypoints.scheduler_client import SchedulerClient
from sglang.srt.entrypoints.service import EngineService
from sglang.srt.server_args import PortArgs, ServerArgs
from tests.wire.rpc_client import Client

GUARD = 20.0  # seconds after which a test fails instead of hanging
VOCAB_SIZE = 1000
CONTEXT_LEN = 64


def model_card(folder: Path) -> ModelCard:
    return ModelCard(
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        vocab_size=VOCAB_SIZE,
        context_len=CONTEXT_LEN,
        eos_token_ids=[2],
        bos_token_id=1,
        pad_token_id=None,
        tokenizer_folder=str(folder),
        default_sampling_params={"temperature": 0.5, "top_p": 0.75},
    )


def ready_message(folder: Path) -> Ready:
    return Ready(
        protocol_version=PROTOCOL_VERSION,
        model=model_card(folder),
        max_total_num_tokens=512,
        max_req_input_len=CONTEXT_LEN - 1,
        max_running_requests=8,
        page_size=4,
        kv_cell_bytes=1000,
        weight_bytes=2_000_000,
        startup_seconds=1.5,
    )


class FakeScheduler:
    """The scheduler's ends of the sockets. The test reads inputs and sends outputs."""

    def __init__(self, ports: PortArgs) -> None:
        self._context = zmq.asyncio.Context()
        self._pull = self._context.socket(zmq.PULL)
        self._pull.connect(ports.scheduler_input_ipc_name)
        self._push = self._context.socket(zmq.PUSH)
        self._push.connect(ports.scheduler_output_ipc_name)
        self._decoder = msgspec.msgpack.Decoder(SchedulerInput)
        self.load = LoadSnapshot(max_total_num_tokens=512, max_running_requests=8)

    async def receive(self) -> Any:
        frame = await asyncio.wait_for(self._pull.recv(), GUARD)
        return self._decoder.decode(frame)

    async def receive_many(self, count: int) -> list[Any]:
        return [await self.receive() for _ in range(count)]

    async def send(self, value: Any) -> None:
        await self._push.send(msgspec.msgpack.encode(value))

    async def step(
        self, *outputs: RequestOutput, durations: dict[str, list[float]] | None = None
    ) -> None:
        await self.send(
            StepOutput(outputs=list(outputs), load=self.load, durations=durations or {})
        )

    def close(self) -> None:
        self._push.close(linger=0)
        self._pull.close(linger=0)
        self._context.term()


def tokens(rid: str, ids: list[int], total: int, **more: Any) -> RequestOutput:
    """News of an answer that has `total` tokens by now."""
    return RequestOutput(
        rid=rid, token_ids=ids, prompt_tokens=3, completion_tokens=total, cached_tokens=1, **more
    )


def finish(rid: str, ids: list[int], total: int, **reason: Any) -> RequestOutput:
    now = time.monotonic()
    times = RequestTimes(
        received=now, admissions=[now], chunks=[(now, 3)], prefilled=now, finished=now
    )
    why = FinishReason(**{"type": "length", **reason})
    return tokens(rid, ids, total, finish=why, times=times)


@dataclass
class Worker:
    """A served worker with the test at both ends."""

    scheduler: FakeScheduler
    client: SchedulerClient
    service: EngineService
    rpc: Any  # SglangScheduler
    engine: Any  # SglangEngine
    folder: Path

    async def become_ready(self) -> None:
        await self.scheduler.send(ready_message(self.folder))
        await asyncio.wait_for(asyncio.shield(self.client.became_ready), GUARD)


def write_tokenizer_files(folder: Path) -> None:
    for name in ("tokenizer.json", "config.json", "tokenizer_config.json"):
        (folder / name).write_text(json.dumps({"name": name}))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "model.gguf").write_bytes(b"not bundled")


@contextlib.asynccontextmanager
async def serve(**options: Any) -> AsyncIterator[Worker]:
    """A worker that still loads; `become_ready` ends that."""
    args = ServerArgs(model_path="dummy", **options)
    args.check_server_args()
    folder = Path(tempfile.mkdtemp(prefix="sgl-"))  # short: paths of sockets are limited
    write_tokenizer_files(folder)
    ports = PortArgs.in_folder(str(folder))
    client = SchedulerClient(ports, max_queued=args.max_queued_requests)
    receiving = asyncio.create_task(client.run())
    scheduler = FakeScheduler(ports)
    service = EngineService(args, client)
    address = f"unix:{folder}/grpc.sock"
    server = grpc_server.make_server(service, [address])
    await server.start()
    limits = [
        ("grpc.max_receive_message_length", wire.MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", wire.MAX_MESSAGE_BYTES),
    ]
    try:
        async with grpc.aio.insecure_channel(address, options=limits) as channel:
            yield Worker(
                scheduler, client, service,
                Client(channel, wire.SCHEDULER_SERVICE),
                Client(channel, wire.ENGINE_SERVICE), folder,
            )  # fmt: skip
    finally:
        await server.stop(None)
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        scheduler.close()
        client.close()
        shutil.rmtree(folder)


def generate_request(request_id: str = "r", **fields: Any) -> Any:
    """A valid request for three prompt tokens; sampling fields go in `sampling_params`."""
    request = wire.scheduler("GenerateRequest")(
        request_id=request_id, stream=True, logprob_start_len=-1
    )
    request.tokenized.input_ids.extend([5, 6, 7])
    request.sampling_params.max_new_tokens = 8
    for name, value in fields.pop("sampling", {}).items():
        target = getattr(request.sampling_params, name, None)
        if isinstance(value, list):
            target.extend(value)
        elif isinstance(value, dict):
            target.update(value)
        else:
            setattr(request.sampling_params, name, value)
    for name, value in fields.items():
        setattr(request, name, value)
    return request
