"""Hooks on one callable: BEFORE, AFTER, AROUND and REPLACE, composed in registration order."""

import functools
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sglang.extension.registry import source_of

logger = logging.getLogger(__name__)
Call = Callable[..., Any]


class HookType(Enum):
    """When a hook runs, and what it is given."""

    BEFORE = "before"  # hook(*args, **kwargs) → None, or (args, kwargs) for the original
    AFTER = "after"  # hook(result, *args, **kwargs) → None, or another result
    AROUND = "around"  # hook(original, *args, **kwargs) → result
    REPLACE = "replace"  # hook(*args, **kwargs) → result; or a class in place of a class


@dataclass(frozen=True)
class HookSource:
    """The plugin that registers, as messages show it."""

    plugin_name: str
    dist_name: str | None = None

    def __str__(self) -> str:
        return f"plugin {self.plugin_name!r} (distribution {self.dist_name or 'unknown'})"


@dataclass(frozen=True)
class Hook:
    """One hook. `source` says who registered it; None outside a plugin."""

    target: str
    call: Call
    kind: HookType
    source: object = None

    def __str__(self) -> str:
        owner = f" of {self.source}" if self.source is not None else ""
        return f"{self.kind.name} hook {source_of(self.call)}{owner}"


class HookChain:
    """The hooks of one target. The last REPLACE stands in for the original; each other hook wraps
    what was registered before it, so the latest one is outermost.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self._hooks: list[Hook] = []

    @property
    def hooks(self) -> tuple[Hook, ...]:
        return tuple(self._hooks)

    @property
    def replacement(self) -> Hook | None:
        """The REPLACE hook that counts."""
        return next((h for h in reversed(self._hooks) if h.kind is HookType.REPLACE), None)

    @property
    def wrappers(self) -> tuple[Hook, ...]:
        return tuple(h for h in self._hooks if h.kind is not HookType.REPLACE)

    def add(self, hook: Hook) -> None:
        """A second REPLACE is logged with both sources, and wins."""
        if not callable(hook.call):
            raise TypeError(
                f"A {hook.kind.name} hook on {self.target} must be callable, got {hook.call!r}."
            )
        if isinstance(hook.call, type) and hook.kind is not HookType.REPLACE:
            raise TypeError(
                f"{source_of(hook.call)} is a class; only HookType.REPLACE takes a class as the "
                f"hook, not {hook.kind.name} (target {self.target})."
            )
        before = self.replacement
        if hook.kind is HookType.REPLACE and before is not None:
            logger.warning(
                "%s is replaced twice: the %s is dropped for the %s.", self.target, before, hook
            )
        self._hooks.append(hook)

    def forget(self, source: object) -> None:
        """Drops what a source registered."""
        self._hooks = [hook for hook in self._hooks if hook.source != source]

    def wrap(self, original: Call) -> Call:
        """The callable to put in the original's place. It is a coroutine function if that is one,
        and then hooks may be coroutine functions too.
        """
        replacement = self.replacement
        call = original if replacement is None else _plain(replacement.call)
        for hook in self.wrappers:
            make = _WRAPPERS[hook.kind, inspect.iscoroutinefunction(call)]
            call = functools.wraps(call)(make(hook, call))
        return call


def _plain(call: Call) -> Call:
    """The function inside a static or class method, which is not called through its class here."""
    return call.__func__ if isinstance(call, classmethod | staticmethod) else call


def _arguments(
    hook: Hook, answer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a BEFORE hook lets the original have."""
    if answer is None:
        return args, kwargs
    match answer:
        case (tuple() | list()) as new_args, dict() as new_kwargs:
            return tuple(new_args), new_kwargs
    raise TypeError(
        f"The {hook} on {hook.target} must return None or (args, kwargs), got {answer!r}."
    )


def _before(hook: Hook, inner: Call) -> Call:
    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = _arguments(hook, hook.call(*args, **kwargs), args, kwargs)
        return inner(*args, **kwargs)

    return call


def _after(hook: Hook, inner: Call) -> Call:
    def call(*args: Any, **kwargs: Any) -> Any:
        result = inner(*args, **kwargs)
        other = hook.call(result, *args, **kwargs)
        return result if other is None else other

    return call


def _around(hook: Hook, inner: Call) -> Call:
    def call(*args: Any, **kwargs: Any) -> Any:
        return hook.call(inner, *args, **kwargs)

    return call


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _before_async(hook: Hook, inner: Call) -> Call:
    async def call(*args: Any, **kwargs: Any) -> Any:
        answer = await _awaited(hook.call(*args, **kwargs))
        args, kwargs = _arguments(hook, answer, args, kwargs)
        return await inner(*args, **kwargs)

    return call


def _after_async(hook: Hook, inner: Call) -> Call:
    async def call(*args: Any, **kwargs: Any) -> Any:
        result = await inner(*args, **kwargs)
        other = await _awaited(hook.call(result, *args, **kwargs))
        return result if other is None else other

    return call


def _around_async(hook: Hook, inner: Call) -> Call:
    async def call(*args: Any, **kwargs: Any) -> Any:
        return await _awaited(hook.call(inner, *args, **kwargs))

    return call


# (kind, whether the wrapped callable is a coroutine function)
_WRAPPERS: dict[tuple[HookType, bool], Callable[[Hook, Call], Call]] = {
    (HookType.BEFORE, False): _before,
    (HookType.AFTER, False): _after,
    (HookType.AROUND, False): _around,
    (HookType.BEFORE, True): _before_async,
    (HookType.AFTER, True): _after_async,
    (HookType.AROUND, True): _around_async,
}
