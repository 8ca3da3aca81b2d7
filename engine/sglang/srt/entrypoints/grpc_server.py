"""The gRPC face of a worker: `sglang.grpc.scheduler` and `sglang.engine.v1`."""

import json
import time
from collections.abc import Sequence
from typing import Any

import grpc

from sglang.srt.core.messages import GenerateInput
from sglang.srt.entrypoints import grpc_convert, wire
from sglang.srt.entrypoints.answer import Answer
from sglang.srt.entrypoints.control import run_operation
from sglang.srt.entrypoints.grpc_embed import Embedding
from sglang.srt.entrypoints.grpc_kv_events import KvEventStream
from sglang.srt.entrypoints.refused import RefusedRequest, is_refusal
from sglang.srt.entrypoints.rpc_status import deadline_of, errors_as_status
from sglang.srt.entrypoints.scheduler_client import SchedulerUnavailable
from sglang.srt.entrypoints.service import EngineService
from sglang.srt.entrypoints.trace_context import trace_context
from sglang.version import __version__

ENGINE_PROTOCOL_VERSION = 1
Code = grpc.StatusCode

# Gateways ping every 30 s, with and without running calls; stricter defaults would cut them off.
SERVER_OPTIONS = (
    ("grpc.max_receive_message_length", wire.MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", wire.MAX_MESSAGE_BYTES),
    ("grpc.http2.min_ping_interval_without_data_ms", 5000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
)


def make_server(service: EngineService, addresses: Sequence[str]) -> grpc.aio.Server:
    """A server bound to `addresses` (`host:port` or `unix:/path`), not started yet.

    Raises OSError when an address cannot be bound.
    """
    server = grpc.aio.server(options=SERVER_OPTIONS)
    generation, administration = Generation(service), Administration(service)
    embedding = Embedding(service)
    server.add_generic_rpc_handlers(
        (
            wire.service_handler(
                wire.SCHEDULER_SERVICE,
                {
                    "Generate": generation.generate,
                    "Embed": embedding.embed,
                    "Abort": generation.abort,
                    "HealthCheck": administration.health_check,
                    "GetModelInfo": administration.get_model_info,
                    "GetServerInfo": administration.get_server_info,
                    "GetLoads": administration.get_loads,
                    "FlushCache": administration.flush_cache,
                    "GetTokenizer": administration.get_tokenizer,
                    "SubscribeKvEvents": KvEventStream(service.client).subscribe,
                },
            ),
            wire.service_handler(wire.ENGINE_SERVICE, {"Control": administration.control}),
        )
    )
    for address in addresses:
        try:
            server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: {error}") from error
    return server


class Generation:
    """The rpcs that start and end answers."""

    def __init__(self, service: EngineService) -> None:
        self._service = service
        self._client = service.client

    async def generate(self, request: Any, context: Any) -> None:
        """One rpc, n answers. Nothing is written before the first news, so that headers go out
        with the first message and everything before it can still be a status.
        """
        deadline = deadline_of(context)
        async with errors_as_status(context):
            model = self._service.ready.model
            inputs = grpc_convert.generate_inputs(
                request,
                vocab_size=model.vocab_size,
                context_len=model.context_len,
                deadline=deadline,
            )
            async with self._service.adapters.used_by(inputs):
                await self._answer(request, inputs, context)

    async def _answer(self, request: Any, inputs: list[GenerateInput], context: Any) -> None:
        with self._client.open(request.request_id, inputs, trace_context(context)) as stream:
            tells_times = self._service.args.enable_metrics
            answers = {
                entry.rid: Answer(request, index, tells_times=tells_times)
                for index, entry in enumerate(inputs)
            }
            await _send_answers(stream, answers, context)

    async def abort(self, request: Any, context: Any) -> Any:
        """Exact ids only. An unknown id may have just ended, so it is no error."""
        reason = request.reason or "Aborted by the client"
        try:
            found = self._client.abort(request.request_id, reason)
        except SchedulerUnavailable as error:
            await wire.abort(context, Code.UNAVAILABLE, str(error))
        message = "aborting" if found else f"no request {request.request_id!r} is running"
        return wire.scheduler("AbortResponse")(success=True, message=message)


async def _send_answers(stream: Any, answers: dict[str, Answer], context: Any) -> None:
    is_anything_sent = False
    while stream.unfinished or stream.has_news:
        for output in await stream.take():
            refused = output.finish if is_refusal(output.finish) else None
            if refused is not None and not is_anything_sent:
                raise RefusedRequest(refused)
            for message in answers[output.rid].messages(output):
                await context.write(message)
                is_anything_sent = True


class Administration:
    """The rpcs that tell about the worker, and operate it."""

    def __init__(self, service: EngineService) -> None:
        self._service = service

    async def health_check(self, _request: Any, context: Any) -> Any:
        healthy, message = self._service.health()
        if not healthy:
            await wire.abort(context, Code.UNAVAILABLE, message)
        return wire.scheduler("HealthCheckResponse")(healthy=True, message=message)

    async def get_model_info(self, _request: Any, context: Any) -> Any:
        try:
            return wire.scheduler("GetModelInfoResponse")(**self._service.model_info())
        except SchedulerUnavailable as error:
            await wire.abort(context, Code.UNAVAILABLE, str(error))

    async def get_server_info(self, _request: Any, context: Any) -> Any:
        service = self._service
        try:
            response = wire.scheduler("GetServerInfoResponse")(
                active_requests=service.client.num_running,
                last_receive_timestamp=service.client.last_receive_time,
                uptime_seconds=time.time() - service.start_time,
                sglang_version=__version__,
                server_type="grpc",
                max_total_num_tokens=service.ready.max_total_num_tokens,
            )
            response.server_args.update(service.server_args())
            response.scheduler_info.update(
                {**service.scheduler_info(), "internal_states": [service.internal_state()]}
            )
        except SchedulerUnavailable as error:
            await wire.abort(context, Code.UNAVAILABLE, str(error))
        response.start_time.seconds = int(service.start_time)
        return response

    async def get_loads(self, request: Any, context: Any) -> Any:
        if request.dp_rank != 0:
            await wire.abort(
                context,
                Code.INVALID_ARGUMENT,
                f"dp_rank must be 0, this worker has one rank; got {request.dp_rank}",
            )
        try:
            loads = self._service.loads(list(request.include))
        except ValueError as error:
            await wire.abort(context, Code.INVALID_ARGUMENT, str(error))
        except SchedulerUnavailable as error:
            await wire.abort(context, Code.UNAVAILABLE, str(error))
        (record,) = loads["loads"]
        return wire.scheduler("GetLoadsResponse")(
            **loads,
            aggregate={
                "total_running_reqs": record["num_running_reqs"],
                "total_waiting_reqs": record["num_waiting_reqs"],
                "total_reqs": record["num_total_reqs"],
                "avg_token_usage": record["token_usage"],
                "avg_throughput": record["gen_throughput"],
                "avg_utilization": record["utilization"],
            },
        )

    async def flush_cache(self, request: Any, context: Any) -> Any:
        try:
            success, message = await self._service.flush_cache(request.timeout_s)
        except SchedulerUnavailable as error:
            await wire.abort(context, Code.UNAVAILABLE, str(error))
        return wire.common("FlushCacheResponse")(success=success, message=message)

    async def get_tokenizer(self, _request: Any, context: Any) -> None:
        try:
            bundle = await self._service.tokenizer_bundle()
        except SchedulerUnavailable as error:
            await wire.abort(context, Code.UNAVAILABLE, str(error))
        except OSError as error:
            await wire.abort(
                context, Code.INTERNAL, f"the tokenizer's files cannot be read: {error}"
            )
        for data, sha256 in bundle.chunks():
            await context.write(wire.common("GetTokenizerChunk")(data=data, sha256=sha256))

    async def control(self, request: Any, context: Any) -> Any:
        theirs = request.protocol_version
        if theirs not in (0, ENGINE_PROTOCOL_VERSION):
            await wire.abort(
                context,
                Code.FAILED_PRECONDITION,
                f"this engine speaks version {ENGINE_PROTOCOL_VERSION} of sglang.engine.v1, the "
                f"caller version {theirs}; install matching releases of both",
            )
        try:
            args = json.loads(request.json or "{}")
            if not isinstance(args, dict):
                raise ValueError(f"json must hold an object, got {request.json[:80]!r}")
            result = await run_operation(self._service, request.name, args)
        except RecursionError:
            await wire.abort(
                context, Code.INVALID_ARGUMENT, "json is nested too deeply; flatten it"
            )
        except ValueError as error:
            await wire.abort(context, Code.INVALID_ARGUMENT, str(error))
        except SchedulerUnavailable as error:
            await wire.abort(context, Code.UNAVAILABLE, str(error))
        return wire.engine("ControlResponse")(
            json=json.dumps(result), protocol_version=ENGINE_PROTOCOL_VERSION
        )
