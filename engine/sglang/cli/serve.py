"""`sglang serve MODEL [--model-type BACKEND] [options]`: selects a serve backend and runs it."""

import argparse
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import NoReturn

from sglang.cli.builtin_backends import BUILTIN_BACKENDS, HELP_FLAGS
from sglang.cli.serve_backends import (
    AUTO,
    FALLBACK_BACKEND,
    MODEL_TYPE_FLAG,
    RegisteredServeBackend,
    ServeBackendError,
    ServeBackendNameError,
    ServeBackendRegistry,
    ServeRequest,
)
from sglang.srt.utils import kill_process_tree

USAGE_ERROR = 2
MODEL_PATH_FLAG = "--model-path"
MODEL_FLAGS = (MODEL_PATH_FLAG, "--model")


def run(argv: Sequence[str]) -> int:
    """The command; when no backend can be chosen, that is one sentence."""
    try:
        return serve(argparse.Namespace(), argv)
    except ServeBackendError as error:
        print(f"sglang serve: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def serve(args: argparse.Namespace, extra_argv: Sequence[str]) -> int:
    """Runs the backend that `extra_argv` selects until it ends; returns the exit code.

    `args` is what the command itself parsed, which is nothing: backends own their options. Raises
    ServeBackendError. However the backend ends, its child processes end with it.
    """
    model_type, request = read_arguments(extra_argv)
    if HELP_FLAGS.intersection(request.argv):
        return _show_help(model_type, request)
    with _children_cleaned_up():
        from sglang.srt import plugins

        plugins.load_plugins()
        registered = _select(_create_backend_registry(), model_type, request)
        if registered.backend.requires_model_path and request.model_path is None:
            print(_missing_model(registered.name), file=sys.stderr)
            return USAGE_ERROR
        return registered.backend.run(request) or 0


def read_arguments(argv: Sequence[str]) -> tuple[str, ServeRequest]:
    """The value of `--model-type`, the last one if repeated, and the request without it."""
    model_type = AUTO
    rest: list[str] = []
    tokens = iter(argv)
    for token in tokens:
        flag, equals, value = token.partition("=")
        if flag != MODEL_TYPE_FLAG:
            rest.append(token)
            continue
        model_type = value if equals else next(tokens, "")
        if not model_type or model_type.startswith("-"):
            raise ServeBackendNameError(
                f"{MODEL_TYPE_FLAG} needs the name of a serve backend, got {model_type!r}; "
                "`sglang serve --help` lists them."
            )
    normalized = with_model_flag(rest)
    positional = len(normalized) > len(rest)
    return model_type, ServeRequest(tuple(normalized), _model_path(normalized), positional)


def with_model_flag(argv: Sequence[str]) -> list[str]:
    """`demo --port 1` → `--model-path demo --port 1`."""
    if argv and not argv[0].startswith("-"):
        return [MODEL_PATH_FLAG, *argv]
    return list(argv)


def _model_path(argv: Sequence[str]) -> str | None:
    """The last one wins, as in a backend's own parser."""
    found = None
    for index, token in enumerate(argv):
        flag, equals, value = token.partition("=")
        if flag in MODEL_FLAGS:
            found = value if equals else next(iter(argv[index + 1 : index + 2]), None)
    return found or None


def _create_backend_registry() -> ServeBackendRegistry:
    return ServeBackendRegistry(BUILTIN_BACKENDS)


def _select(
    registry: ServeBackendRegistry, model_type: str, request: ServeRequest
) -> RegisteredServeBackend:
    return registry.auto_detect(request) if model_type == AUTO else registry.get(model_type)


def _missing_model(name: str) -> str:
    return (
        f"Error: {MODEL_PATH_FLAG} is required. Serve backend {name!r} needs a model: "
        f"`sglang serve MODEL {MODEL_TYPE_FLAG} {name}`, or {MODEL_PATH_FLAG} MODEL."
    )


def _show_help(model_type: str, request: ServeRequest) -> int:
    """Help of the selected backend; with neither backend nor model, of the command and `llm`."""
    registry = _create_backend_registry()
    if model_type == AUTO and request.model_path is None:
        print(_general_help(registry), flush=True)
        model_type = FALLBACK_BACKEND
    return _select(registry, model_type, request).backend.run(request) or 0


def _general_help(registry: ServeBackendRegistry) -> str:
    names = registry.available_names
    width = max(map(len, names)) + 2
    backends = [
        f"  {name:<{width}}{', '.join(registry.distributions_of(name)) or 'built in'}"
        for name in names
    ]
    return "\n".join(
        [
            f"usage: sglang serve MODEL [{MODEL_TYPE_FLAG} BACKEND] [options of the backend]",
            "",
            "MODEL is a local path, a hub id or `demo`. BACKEND is the program that serves it; the",
            f"default, {AUTO}, takes the one that recognises the model, else {FALLBACK_BACKEND}.",
            "",
            "backends, and the packages they come from:",
            *backends,
            "",
            f"`sglang serve {MODEL_TYPE_FLAG} BACKEND --help` shows the options of a backend; "
            f"those of {FALLBACK_BACKEND} are:",
            "",
        ]
    )


@contextlib.contextmanager
def _children_cleaned_up() -> Iterator[None]:
    """Kills this process's children at the end, also when SIGTERM brings it.

    A backend that handles SIGTERM itself replaces the handler set here.
    """
    handles = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    )
    if handles:
        signal.signal(signal.SIGTERM, _exit_on_signal)
    try:
        yield
    finally:
        if handles:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # nothing interrupts the cleaning up
        kill_process_tree(os.getpid(), include_parent=False)
        if handles:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit_on_signal(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
