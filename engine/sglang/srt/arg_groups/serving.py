"""Where the worker listens, and how it starts and ends."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated as A

from sglang.srt.arg_groups.declaration import Alias, Bound, Group, Secret

GROUP = Group("server")
PORTS = Bound(ge=1, le=65535)
DAY = 86400.0  # seconds


@dataclass
class ServingArgs:
    """Ports, keys, start and end."""

    host: A[str, GROUP, "Address to listen on."] = "127.0.0.1"
    port: A[int, GROUP, PORTS, "Port of the HTTP server, or of gRPC with --grpc-mode."] = 30000
    grpc_port: A[int | None, GROUP, PORTS, "Port for gateways (gRPC) beside the HTTP server."] = (
        None
    )
    grpc_mode: A[
        bool,
        GROUP,
        Alias("--smg-grpc-mode"),
        "Serve gRPC on --port and no HTTP API; health and metrics are on port + 1.",
    ] = False
    api_key: A[
        str | None, GROUP, Secret(), "Key that HTTP clients must send as a bearer token."
    ] = None
    admin_api_key: A[
        str | None,
        GROUP,
        Secret(),
        "Key for the administrative routes in place of that one; those of the storage backend "
        "need it.",
    ] = None
    shutdown_grace_period_secs: A[
        int,
        GROUP,
        Bound(ge=0, le=DAY),
        "Seconds that running requests get to end after SIGTERM.",
    ] = 180
    skip_server_warmup: A[bool, GROUP, "Report ready without a first generation."] = False


def check_serving(args: ServingArgs, front_door: Mapping[str, object]) -> None:
    """ValueError where ports or the HTTP server's options contradict each other."""
    if args.grpc_port is not None and args.grpc_port == args.port:
        raise ValueError(f"--grpc-port must differ from --port, both are {args.port}")
    if args.grpc_port is not None and args.grpc_mode:
        raise ValueError("--grpc-mode serves gRPC on --port; leave --grpc-port out")
    if args.grpc_mode and args.port == 65535:
        raise ValueError("--port must be at most 65534 with --grpc-mode, port + 1 serves health")
    if args.grpc_mode and (args.api_key or args.admin_api_key or front_door):
        keys = {"--api-key": args.api_key, "--admin-api-key": args.admin_api_key}
        given = [flag for flag, key in keys.items() if key]
        given += ["--" + name.replace("_", "-") for name in front_door]
        raise ValueError(f"{', '.join(given)}: the HTTP server is off with --grpc-mode")
    if not args.host:
        raise ValueError("--host must not be empty")
