"""Which of a kernel and its twin a layer uses; and how kernels are compiled."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

F = TypeVar("F")


def choose(device: torch.device, twin: F, kernel: F) -> F:
    """The kernel on CUDA, its twin elsewhere. Called when a layer is built, never in a pass."""
    return kernel if device.type == "cuda" else twin


class Kernel:
    """A Triton function, compiled when it is first launched: `kernel[grid](…)`.

    So the modules that define kernels can be imported where there is no Triton.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function
        self._compiled: Any = None

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        if self._compiled is None:
            self._compiled = self._compile()
        launch: Callable[..., Any] = self._compiled[grid]
        return launch

    def _compile(self) -> Any:
        return _jit(self._function)


class Part:
    """A Triton function that kernels call, compiled with the first kernel that does."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._compiled: Any = None

    def __call__(self, *args: Any) -> Any:
        raise TypeError(f"{self._function.__name__} can be called by kernels only")

    def compiled(self) -> Any:
        if self._compiled is None:
            self._compiled = _jit(self._function)
        return self._compiled


def _jit(function: Callable[..., Any]) -> Any:
    import triton
    import triton.language

    names = function.__globals__
    # The function's module names the language for type checkers only.
    names["tl"] = triton.language
    for name in function.__code__.co_names:
        if isinstance(part := names.get(name), Part):
            names[name] = part.compiled()
    return triton.jit(function)


def power_of_two(size: int, least: int = 1) -> int:
    """The smallest power of two that is not below `size` nor `least`: the shape of a block."""
    return max(1 << (size - 1).bit_length(), least)
