"""What can be wrong with the options and this machine, found before anything slow starts."""

import difflib
import errno
import os
import socket

import msgspec

from sglang.srt.core.sampling_params import SamplingParams
from sglang.srt.observability import tracing
from sglang.srt.server_args import ServerArgs

# What gateways fill in where a request is silent.
PREFERABLE = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
)


class LaunchError(Exception):
    """The worker cannot serve; the text is one sentence for the user."""


def check_launch(args: ServerArgs) -> None:
    """Raises LaunchError."""
    check_preferred_sampling(args)
    check_ports(args)
    check_files(args)
    check_packages(args)


def check_preferred_sampling(args: ServerArgs) -> None:
    """Raises LaunchError when a request could not have these values either."""
    flag, preferred = "--preferred-sampling-params", args.preferred_sampling
    for name in preferred:
        if name not in PREFERABLE:
            near = difflib.get_close_matches(name, PREFERABLE, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise LaunchError(f"{flag}: unknown {name!r}; {hint}allowed: {', '.join(PREFERABLE)}")
    try:
        params = msgspec.convert(preferred, SamplingParams)
        params.check(vocab_size=0)  # no preferable one names a token
    except (ValueError, msgspec.ValidationError) as error:
        raise LaunchError(f"{flag}: {error}") from None


def check_packages(args: ServerArgs) -> None:
    """Raises LaunchError when an option needs packages that are not installed."""
    if args.enable_trace:
        try:
            tracing.check_installed()
        except ValueError as error:
            raise LaunchError(str(error)) from None


def check_ports(args: ServerArgs) -> None:
    """Raises LaunchError when a port is taken."""
    ports = {"--port": args.port}
    if args.grpc_port is not None:
        ports["--grpc-port"] = args.grpc_port
    if args.grpc_mode:
        ports["--port plus 1, for health and metrics"] = args.port + 1
    for flag, port in ports.items():
        family = socket.AF_INET6 if ":" in args.host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((args.host, port))
            except OSError as error:
                raise LaunchError(
                    f"cannot listen on {args.host} port {port} ({flag}): "
                    f"{(error.strerror or str(error)).lower()}; {_advice(error)}"
                ) from error


def _advice(error: OSError) -> str:
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return "--host must be an address of this machine, such as 0.0.0.0"
    return "choose another one"


def check_files(args: ServerArgs) -> None:
    """Raises LaunchError when an option names a file that cannot be read."""
    template = args.chat_template
    if template is not None and not os.access(template, os.R_OK):
        raise LaunchError(f"--chat-template {template!r} is not a readable file")
