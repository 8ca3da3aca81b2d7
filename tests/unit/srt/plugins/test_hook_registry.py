"""The registry that plugins of the language runtime register with."""

import logging
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from sglang.extension.hooks import HookSource
from sglang.srt.plugins.hook_registry import (
    HookRegistry,
    HookType,
    _current_plugin_source,
    plugin_hook,
)


@pytest.fixture
def module() -> Iterator[Any]:
    """A module to hook, and a registry without hooks before and after."""
    made: Any = types.ModuleType("hooked_by_registry")
    made.add = lambda a, b=1: a + b
    sys.modules[made.__name__] = made
    HookRegistry.reset()
    yield made
    HookRegistry.reset()
    del sys.modules[made.__name__]


def test_values_of_the_kinds() -> None:
    assert [kind.value for kind in HookType] == ["before", "after", "around", "replace"]


def test_after_is_the_default(module: Any) -> None:
    HookRegistry.register("hooked_by_registry.add", lambda result, a: result * 10)
    HookRegistry.apply_hooks()
    assert module.add(1) == 20


def test_decorator_returns_what_it_decorates(module: Any) -> None:
    def hook(result: int, a: int) -> int:
        return result + 1

    assert plugin_hook("hooked_by_registry:add", type=HookType.AFTER)(hook) is hook
    HookRegistry.apply_hooks()
    assert module.add(1) == 3


def test_hooks_are_applied_once(module: Any) -> None:
    HookRegistry.register("hooked_by_registry.add", lambda result, a: result * 10)
    HookRegistry.apply_hooks()
    HookRegistry.apply_hooks()
    assert module.add(1) == 20


def test_a_failed_target_is_logged_and_the_others_work(
    module: Any, caplog: pytest.LogCaptureFixture
) -> None:
    HookRegistry.register(
        "sglang.srt.managers.nowhere.Scheduler", lambda: None, source=HookSource("plug", "dist")
    )
    HookRegistry.register("hooked_by_registry.add", lambda result, a: 7)
    with caplog.at_level(logging.ERROR):
        HookRegistry.apply_hooks()
    assert "sglang.srt.managers.nowhere.Scheduler" in caplog.text
    assert "plugin 'plug' (distribution dist)" in caplog.text
    assert module.add(1) == 7


def test_the_running_plugin_is_the_source(module: Any) -> None:
    running = _current_plugin_source.set(HookSource("plug", "dist"))
    try:
        HookRegistry.register("hooked_by_registry.add", lambda result, a: None)
        HookRegistry.register("hooked_by_registry.add", lambda result, a: None, source="own")
    finally:
        _current_plugin_source.reset(running)
    assert [hook.source for hook in HookRegistry.registered()] == [
        HookSource("plug", "dist"), "own",
    ]  # fmt: skip
    HookRegistry.discard(HookSource("plug", "dist"))
    assert [hook.source for hook in HookRegistry.registered()] == ["own"]
