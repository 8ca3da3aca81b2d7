"""Calls of a worker's services."""

from typing import Any

import grpc

from sglang.srt.entrypoints import wire


class Client:
    """Calls a service over a channel, a method per rpc: `Client(channel, SERVICE).Generate(…)`."""

    def __init__(self, channel: grpc.aio.Channel, service: str) -> None:
        for method in wire.pool().FindServiceByName(service).methods:
            make = channel.unary_stream if method.server_streaming else channel.unary_unary
            call = make(
                f"/{service}/{method.name}",
                request_serializer=wire.message(method.input_type.full_name).SerializeToString,
                response_deserializer=wire.message(method.output_type.full_name).FromString,
            )
            setattr(self, method.name, call)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the service has no rpc {name}")
