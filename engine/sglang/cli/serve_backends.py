"""The contract of serve backends, and the registry that finds the installed ones."""

import difflib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import entry_points

from sglang.extension.entry_points import (
    FoundEntryPoint,
    LoadError,
    find_entry_points,
    load_entry_point,
)

logger = logging.getLogger(__name__)

SERVE_BACKENDS_GROUP = "sglang.serve_backends"
SERVE_BACKEND_API_VERSION = 1
MODEL_TYPE_FLAG = "--model-type"
AUTO = "auto"
FALLBACK_BACKEND = "llm"
RESERVED_SERVE_BACKEND_NAMES = frozenset({AUTO})


class ServeBackendError(Exception):
    """No backend can be chosen; the text says why and what to do."""


class ServeBackendNameError(ServeBackendError, ValueError):
    """A name that is missing, reserved or unknown."""


class ServeBackendUnusableError(ServeBackendError, RuntimeError):
    """A name that stands for no backend, or for several."""


class ServeBackendTypeError(ServeBackendError, TypeError):
    """A factory returned something else."""


class ServeBackendDetection(str, Enum):
    """A detector's answer. UNKNOWN claims nothing, like NO_MATCH, but is logged."""

    MATCH = "match"
    NO_MATCH = "no_match"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class ServeRequest:
    """What the user typed: no `--model-type`, and a positional model as `--model-path`."""

    argv: tuple[str, ...]
    model_path: str | None
    model_path_is_positional: bool = False


@dataclass(frozen=True)
class ServeBackend:
    """One runtime behind `sglang serve`. Plugins write `api_version` as a literal.

    `run` blocks for the server's lifetime, and shows help without launching when `argv` asks for
    it; what it returns is the exit code, None means 0. `detect` must be cheap: no accelerator, no
    weights, no processes. Without it the backend runs only when named.
    """

    api_version: int
    run: Callable[[ServeRequest], int | None]
    detect: Callable[[ServeRequest], ServeBackendDetection] | None = None
    requires_model_path: bool = True


@dataclass(frozen=True)
class RegisteredServeBackend:
    """A backend, its name, and the distribution it came from; None for a built-in."""

    name: str
    backend: ServeBackend
    distribution: str | None = None


class ServeBackendRegistry:
    """Built-in backends and those of installed packages, which are imported when asked for."""

    def __init__(self, builtins: Mapping[str, ServeBackend]) -> None:
        if taken := sorted(RESERVED_SERVE_BACKEND_NAMES & builtins.keys()):
            raise ServeBackendNameError(
                f"{', '.join(taken)} is reserved; a built-in serve backend needs another name."
            )
        self._loaded = {n: RegisteredServeBackend(n, backend) for n, backend in builtins.items()}
        self._builtin_names = tuple(builtins)
        self._found: dict[str, list[FoundEntryPoint]] = {}
        for found in find_entry_points(SERVE_BACKENDS_GROUP, entry_points):
            self._found.setdefault(found.name, []).append(found)
        self._refuse_taken_names()

    @property
    def available_names(self) -> tuple[str, ...]:
        """Built-ins, then plugins by name. Imports nothing."""
        return (*self._builtin_names, *self._found)

    def distributions_of(self, name: str) -> tuple[str, ...]:
        """The packages that declare a name; empty for a built-in. Imports nothing."""
        return tuple(each.distribution or "(unnamed)" for each in self._found.get(name, ()))

    def get(self, name: str) -> RegisteredServeBackend:
        """The backend of that name. Imports its provider and no other."""
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def auto_detect(self, request: ServeRequest) -> RegisteredServeBackend:
        """The one backend whose detector claims the request; without a claim, `llm`."""
        claims = [
            registered
            for name in self.available_names
            if (registered := self._claim(name, request)) is not None
        ]
        if len(claims) > 1:
            names = ", ".join(each.name for each in claims)
            raise ServeBackendUnusableError(
                f"Multiple serve backends matched {request.model_path or 'these arguments'}: "
                f"{names}. Select one with {MODEL_TYPE_FLAG} NAME."
            )
        return claims[0] if claims else self.get(FALLBACK_BACKEND)

    def _refuse_taken_names(self) -> None:
        taken = RESERVED_SERVE_BACKEND_NAMES | set(self._builtin_names)
        wrong = [each for name in self._found if name in taken for each in self._found[name]]
        if wrong:
            raise ServeBackendUnusableError(
                f"Entry points of {SERVE_BACKENDS_GROUP!r} cannot replace reserved or built-in "
                f"backends: {', '.join(map(str, wrong))}. Uninstall the package, or install a "
                "release of it that uses another name."
            )

    def _load(self, name: str) -> RegisteredServeBackend:
        found = self._found.get(name, [])
        if not found:
            raise self._unknown(name)
        if len(found) > 1:
            raise ServeBackendUnusableError(
                f"Serve backend {name!r} is declared by several packages: "
                f"{', '.join(self.distributions_of(name))}. Uninstall all but one."
            )
        return RegisteredServeBackend(name, _backend_of(found[0]), found[0].distribution)

    def _unknown(self, name: str) -> ServeBackendNameError:
        names = (AUTO, *self.available_names)
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return ServeBackendNameError(
            f"Unknown serve backend {name!r}; {hint}Available: {', '.join(names)}. A plugin adds "
            f"one by an entry point in the group {SERVE_BACKENDS_GROUP!r}."
        )

    def _claim(self, name: str, request: ServeRequest) -> RegisteredServeBackend | None:
        try:
            registered = self.get(name)
        except ServeBackendError as error:
            logger.warning("%s It is left out of the automatic choice.", error)
            return None
        if registered.backend.detect is None:
            return None
        try:
            answer = ServeBackendDetection(registered.backend.detect(request))
        except Exception as error:  # noqa: BLE001 - foreign code may raise anything
            logger.warning(
                "The detector of serve backend %r failed, so it claims nothing: %s: %s",
                name, type(error).__name__, error,
            )  # fmt: skip
            return None
        if answer is ServeBackendDetection.UNKNOWN:
            logger.info("Serve backend %r cannot tell whether it serves this; no claim.", name)
        return registered if answer is ServeBackendDetection.MATCH else None


def _backend_of(found: FoundEntryPoint) -> ServeBackend:
    factory = load_entry_point(found)
    if isinstance(factory, LoadError):
        raise _failed(found, factory.error) from factory.error
    try:
        backend = factory()
    except Exception as error:
        raise _failed(found, error) from error
    if not isinstance(backend, ServeBackend):
        raise ServeBackendTypeError(
            f"Serve backend {found.name!r} factory returned {type(backend).__name__}; "
            "expected sglang.cli.serve_backends.ServeBackend."
        )
    if backend.api_version != SERVE_BACKEND_API_VERSION:
        raise ServeBackendUnusableError(
            f"Serve backend {found.name!r} uses API version {backend.api_version}; "
            f"this SGLang release requires version {SERVE_BACKEND_API_VERSION}."
        )
    return backend


def _failed(found: FoundEntryPoint, error: Exception) -> ServeBackendUnusableError:
    return ServeBackendUnusableError(
        f"Failed to load serve backend {found}: {type(error).__name__}: {error}. "
        "Repair or uninstall the package."
    )
