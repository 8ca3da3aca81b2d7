"""The gRPC messages and services of proto/, made from the compiled descriptor set."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

from sglang.srt.core.messages import clipped

SCHEDULER_SERVICE = "sglang.grpc.scheduler.SglangScheduler"
ENGINE_SERVICE = "sglang.engine.v1.SglangEngine"
DESCRIPTOR_SET = Path(__file__).with_name("wire.binpb")
MAX_MESSAGE_BYTES = 256 * 1024 * 1024

# Behaviour of a method: request and context in; a message, or nothing when it writes itself.
Handler = Callable[[Any, Any], Awaitable[Message | None]]


@cache
def pool() -> descriptor_pool.DescriptorPool:
    """The descriptors, in a pool of their own: generated stubs of the same packages may coexist."""
    if not DESCRIPTOR_SET.exists():
        raise FileNotFoundError(
            f"{DESCRIPTOR_SET.name} is missing beside {__name__}; run `make proto`"
        )
    descriptors = descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTOR_SET.read_bytes())
    made = descriptor_pool.DescriptorPool()
    for file in _dependencies_first(descriptors):
        made.AddSerializedFile(file.SerializeToString())
    return made


def _dependencies_first(
    descriptors: descriptor_pb2.FileDescriptorSet,
) -> Iterator[descriptor_pb2.FileDescriptorProto]:
    waiting = {file.name: file for file in descriptors.file}

    def take(name: str) -> Iterator[descriptor_pb2.FileDescriptorProto]:
        if file := waiting.pop(name, None):
            for dependency in file.dependency:
                yield from take(dependency)
            yield file

    for name in list(waiting):
        yield from take(name)


@cache
def message(full_name: str) -> type[Message]:
    """A message class by its full name."""
    return message_factory.GetMessageClass(pool().FindMessageTypeByName(full_name))


def scheduler(name: str) -> Any:
    """A message class of `sglang.grpc.scheduler`."""
    return message(f"sglang.grpc.scheduler.{name}")


def common(name: str) -> Any:
    """A message class of `smg.grpc.common`."""
    return message(f"smg.grpc.common.{name}")


def engine(name: str) -> Any:
    """A message class of `sglang.engine.v1`."""
    return message(f"sglang.engine.v1.{name}")


def service_handler(service: str, handlers: Mapping[str, Handler]) -> grpc.GenericRpcHandler:
    """A service whose methods behave as `handlers` says; the others answer UNIMPLEMENTED.

    A streaming handler writes through its context and returns None.
    """
    descriptor = pool().FindServiceByName(service)
    unknown = set(handlers) - {method.name for method in descriptor.methods}
    assert not unknown, f"{service} has no methods {sorted(unknown)}"
    table = {}
    for method in descriptor.methods:
        behaviour = handlers.get(method.name) or _unimplemented(method.name)
        make = (
            grpc.unary_stream_rpc_method_handler
            if method.server_streaming
            else grpc.unary_unary_rpc_method_handler
        )
        table[method.name] = make(
            behaviour,
            request_deserializer=message(method.input_type.full_name).FromString,
            response_serializer=message(method.output_type.full_name).SerializeToString,
        )
    return grpc.method_handlers_generic_handler(service, table)


def _unimplemented(name: str) -> Handler:
    async def answer(_request: Any, context: Any) -> None:
        await context.abort(
            grpc.StatusCode.UNIMPLEMENTED, f"{name} is not implemented by this engine"
        )

    return answer


async def abort(context: Any, code: grpc.StatusCode, text: str) -> None:
    """Ends an rpc; the text, which may repeat what was sent, is a header and must not be long."""
    await context.abort(code, clipped(text))
