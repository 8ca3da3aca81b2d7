"""Hooks of general plugins on any function, method or class of the language runtime."""

import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar

from sglang.extension.hooks import Hook, HookSource, HookType
from sglang.extension.patching import HookTable

__all__ = ["HookRegistry", "HookType", "plugin_hook"]

logger = logging.getLogger(__name__)
F = TypeVar("F", bound=Callable[..., Any])

# Set while a plugin registers, so that every message about its hooks can name it.
_current_plugin_source: ContextVar[HookSource | None] = ContextVar(
    "current_plugin_source", default=None
)


class HookRegistry:
    """The hooks of this process; `load_plugins()` applies them once the plugins have registered."""

    _table = HookTable()

    @classmethod
    def register(
        cls,
        target: str,
        hook: Callable[..., Any],
        hook_type: HookType = HookType.AFTER,
        *,
        source: object = None,
    ) -> None:
        """Adds a hook on `package.module.Class.method` or `package.module:Class.method`.

        A class as the hook of another type than REPLACE is a TypeError. Of two REPLACE hooks on
        one target the last is used, with a warning that names both plugins.
        """
        source = source if source is not None else _current_plugin_source.get()
        cls._table.register(target, hook, HookType(hook_type), source)

    @classmethod
    def apply_hooks(cls) -> None:
        """Patches the targets that are not patched yet. One that fails is logged, not raised."""
        for failed in cls._table.apply():
            logger.error("%s", failed, exc_info=failed.error)

    @classmethod
    def registered(cls) -> list[Hook]:
        return cls._table.hooks()

    @classmethod
    def discard(cls, source: object) -> None:
        """Drops the hooks that a source registered, if they are not applied yet."""
        cls._table.forget(source)

    @classmethod
    def reset(cls) -> None:
        """Forgets all hooks. What they patched stays patched; tests call this."""
        cls._table.reset()


def plugin_hook(target: str, type: HookType = HookType.AFTER) -> Callable[[F], F]:
    """Decorator: registers the function or class as a hook, and returns it unchanged."""

    def decorator(hook: F) -> F:
        HookRegistry.register(target, hook, type)
        return hook

    return decorator
