"""Markers that say where a test file runs in CI. They do nothing when the file runs."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PREFIX, SUFFIX = "register_", "_ci"


def register_cpu_ci(
    est_time: float,
    suite: str | None = None,
    *,
    stage: str | None = None,
    runner_config: str | None = None,
    nightly: bool = False,
    disabled: str | None = None,
) -> None:
    """The file takes `est_time` seconds without an accelerator.

    CI reads the call without importing the file, so every argument is a literal. `disabled` says
    why the file does not run.
    """


register_cuda_ci = register_amd_ci = register_npu_ci = register_xpu_ci = register_cpu_ci


@dataclass(frozen=True)
class Registration:
    """One marker in a file."""

    backend: str  # cpu | cuda | amd | npu | xpu
    est_time: float  # seconds
    suite: str | None = None
    stage: str | None = None
    runner_config: str | None = None
    nightly: bool = False
    disabled: str | None = None


def registrations(path: Path) -> Iterator[Registration]:
    """The markers of a test file. ValueError: an argument is no literal."""
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
            continue
        call = statement.value
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        if name.startswith(PREFIX) and name.endswith(SUFFIX):
            backend = name.removeprefix(PREFIX).removesuffix(SUFFIX)
            yield _registration(backend, call, path)


def _registration(backend: str, call: ast.Call, path: Path) -> Registration:
    try:
        positional = [ast.literal_eval(argument) for argument in call.args]
        named = {word.arg or "": ast.literal_eval(word.value) for word in call.keywords}
    except ValueError as error:
        raise ValueError(
            f"{path}:{call.lineno}: arguments of {PREFIX}{backend}{SUFFIX} must be literals"
        ) from error
    values: dict[str, Any] = dict(zip(("est_time", "suite"), positional, strict=False)) | named
    return Registration(backend, **values)
