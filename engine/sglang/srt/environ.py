"""Every `SGLANG_*` environment variable, typed, once; nothing else reads the environment."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off", "")


class EnvVar(Generic[T]):
    """One variable. The text is parsed at each `get`, so a test may set it at any time."""

    def __init__(self, default: T, parse: Callable[[str], T], help: str) -> None:
        self.name = ""
        self.default = default
        self.help = help
        self._parse = parse

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def get(self) -> T:
        """The parsed value, or the default. Text that cannot be parsed raises ValueError."""
        text = os.environ.get(self.name)
        if text is None:
            return self.default
        try:
            return self._parse(text)
        except ValueError as error:
            raise ValueError(f"environment variable {self.name}: {error}") from error

    def is_set(self) -> bool:
        return self.name in os.environ

    def set(self, value: T) -> None:
        """For this process and the children it starts from now on."""
        os.environ[self.name] = str(value)

    def clear(self) -> None:
        os.environ.pop(self.name, None)

    @contextmanager
    def override(self, value: T) -> Iterator[None]:
        before = os.environ.get(self.name)
        self.set(value)
        try:
            yield
        finally:
            if before is None:
                self.clear()
            else:
                os.environ[self.name] = before


def parse_bool(text: str) -> bool:
    """1/true/yes/on and 0/false/no/off, in any case."""
    lowered = text.strip().lower()
    if lowered in _TRUE:
        return True
    if lowered in _FALSE:
        return False
    raise ValueError(f"expected true or false, got {text!r}")


def _parse_path(text: str) -> Path:
    return Path(text).expanduser()


def _parse_seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise ValueError(f"expected seconds above 0, got {text!r}")
    return seconds


def _parse_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


class Envs:
    """The variables by name: `envs.SGLANG_CACHE_DIR.get()`."""

    SGLANG_CACHE_DIR = EnvVar(
        Path("~/.cache/sglang").expanduser(),
        _parse_path,
        "Folder for downloaded and converted models.",
    )
    SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN = EnvVar(
        False, parse_bool, "Lets --context-length exceed what the model was trained for."
    )
    SGLANG_EXTERNAL_MODEL_PACKAGE = EnvVar(
        "", str, "Package whose model classes are added, replacing built-in ones of equal name."
    )
    SGLANG_DISABLED_MODEL_ARCHS = EnvVar[tuple[str, ...]](
        (), _parse_names, "Model modules that are not loaded, separated by commas."
    )
    SGLANG_PLUGINS = EnvVar(
        "", str, "General plugins to load, separated by commas; without it every installed one."
    )
    SGLANG_PLATFORM = EnvVar(
        "", str, "Platform by entry-point name; plugins of other platforms' packages stay off."
    )
    SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR = EnvVar(
        Path("/tmp/hicache"), _parse_path, "Folder of the storage backend `file`."
    )
    SGLANG_HEALTH_CHECK_TIMEOUT = EnvVar(
        20.0, _parse_seconds, "Seconds of silence after which a scheduler counts as unhealthy."
    )
    SGLANG_REQ_WAITING_TIMEOUT = EnvVar[float | None](
        None, _parse_seconds, "Seconds a request may wait for its first pass; default: any time."
    )


envs = Envs()


def let_idle_threads_sleep() -> None:
    """For children started from now on: OpenMP threads sleep at a barrier instead of spinning.

    Spinning keeps from the cores whoever it waits for: with other processes on the same two cores
    a decode step of the demo model took 458 ms spinning and 69 ms sleeping. A user's own choice
    stays.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def option_variable(field: str) -> str:
    """The variable that sets an option of the server: `page_size` → `SGLANG_PAGE_SIZE`."""
    return f"SGLANG_{field.upper()}"


def read_variable(name: str) -> str | None:
    return os.environ.get(name)
