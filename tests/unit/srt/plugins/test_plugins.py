"""General plugins: which are found, which are left out, and what a failing one does."""

import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sglang.srt import plugins
from sglang.srt.plugins import (
    GENERAL_PLUGINS_GROUP,
    PLATFORM_PLUGINS_GROUP,
    _get_excluded_dists,
    load_plugins,
    load_plugins_by_group,
    plugin_state,
)
from sglang.srt.plugins.hook_registry import HookRegistry, _current_plugin_source

Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Pretends that packages with entry points are installed, in a process that has none yet."""
    groups: dict[str, list[Any]] = {}
    monkeypatch.setattr(plugins, "entry_points", lambda group: groups.get(group, []))
    monkeypatch.setattr(plugins, "_plugins_loaded", False)
    monkeypatch.setattr(plugins, "_states", {})
    for name in ("SGLANG_PLUGINS", "SGLANG_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    HookRegistry.reset()

    def put(name: str, plugin: Any, dist: str, group: str = GENERAL_PLUGINS_GROUP) -> None:
        def load() -> Any:
            if isinstance(plugin, Exception):
                raise plugin
            return plugin

        entry = SimpleNamespace(name=name, load=load, dist=SimpleNamespace(name=dist))
        groups.setdefault(group, []).append(entry)

    yield put
    HookRegistry.reset()


def state_of(name: str, dist: str) -> str | None:
    return plugin_state(SimpleNamespace(group=GENERAL_PLUGINS_GROUP, name=name, distribution=dist))  # type: ignore[arg-type]


def test_names_of_the_groups() -> None:
    assert PLATFORM_PLUGINS_GROUP == "sglang.srt.platforms"
    assert GENERAL_PLUGINS_GROUP == "sglang.srt.plugins"


def test_each_plugin_runs_once_in_a_process(install: Install) -> None:
    ran: list[str] = []
    install("b", lambda: ran.append("b"), "dist-b")
    install("a", lambda: ran.append("a"), "dist-a")
    load_plugins()
    load_plugins()
    assert ran == ["a", "b"]
    assert state_of("a", "dist-a") == "loaded"


def test_hooks_are_applied_after_all_have_registered(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    monkeypatch.setattr(HookRegistry, "apply_hooks", lambda: order.append("applied"))
    install("a", lambda: order.append("a"), "dist-a")
    install("b", lambda: order.append("b"), "dist-b")
    load_plugins()
    assert order == ["a", "b", "applied"]


def test_a_plugin_knows_its_source_while_it_runs(install: Install) -> None:
    seen: list[str] = []
    install("a", lambda: seen.append(str(_current_plugin_source.get())), "dist-a")
    load_plugins()
    assert seen == ["plugin 'a' (distribution dist-a)"]
    assert _current_plugin_source.get() is None


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit])
def test_a_failing_plugin_is_logged_with_its_traceback_and_loses_its_hooks(
    install: Install, caplog: pytest.LogCaptureFixture, kind: type[BaseException]
) -> None:
    def broken() -> None:
        HookRegistry.register("json.dumps", lambda result, value: "hooked")
        raise kind("no such device")

    ran: list[str] = []
    install("a", broken, "dist-a")
    install("b", lambda: ran.append("b"), "dist-b")
    with caplog.at_level(logging.ERROR):
        load_plugins()
    assert ran == ["b"] and HookRegistry.registered() == []
    assert "plugin 'a' (distribution dist-a) failed" in caplog.text
    assert "Traceback" in caplog.text and "no such device" in caplog.text
    assert _current_plugin_source.get() is None
    assert state_of("a", "dist-a") == f"failed: {kind.__name__}: no such device"


def test_what_cannot_be_imported_or_called_is_left_out(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    install("a", ImportError("no vendor library"), "dist-a")
    install("b", "text", "dist-b")
    install("c", print, "dist-c")
    with caplog.at_level(logging.ERROR):
        loaded = load_plugins_by_group(GENERAL_PLUGINS_GROUP)
    assert loaded == {"c": (print, "dist-c")}
    assert "'a' of dist-a cannot be loaded: ImportError: no vendor library" in caplog.text
    assert "'b' of dist-b failed: it is 'text', and not a function" in caplog.text


def test_of_two_packages_with_one_name_the_first_counts(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    install("a", repr, "dist-2")
    install("a", print, "dist-1")
    assert load_plugins_by_group(GENERAL_PLUGINS_GROUP) == {"a": (print, "dist-1")}
    assert "'a' of dist-2 is left out: off: dist-1 has a plugin of that name" in caplog.text


def test_the_allow_list_keeps_the_others_from_being_imported(
    install: Install, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install("a", print, "dist-a")
    install("b", AssertionError("imported"), "dist-b")
    monkeypatch.setenv("SGLANG_PLUGINS", " a , typo")
    with caplog.at_level(logging.WARNING):
        assert list(load_plugins_by_group(GENERAL_PLUGINS_GROUP)) == ["a"]
    assert "no plugin 'typo' is installed (are: a, b)" in caplog.text
    assert state_of("b", "dist-b") == "off: SGLANG_PLUGINS does not list it"


def test_an_unknown_platform_is_told(
    install: Install, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install("fast", print, "vendor-1", PLATFORM_PLUGINS_GROUP)
    monkeypatch.setenv("SGLANG_PLATFORM", "fats")
    assert _get_excluded_dists() == {"vendor-1"}
    assert "SGLANG_PLATFORM: no platform 'fats' is installed (are: fast)" in caplog.text


def test_an_empty_allow_list_lists_nothing_and_forbids_nothing(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("a", print, "dist-a")
    monkeypatch.setenv("SGLANG_PLUGINS", "")
    assert list(load_plugins_by_group(GENERAL_PLUGINS_GROUP)) == ["a"]


def test_plugins_of_another_platform_s_package_stay_off(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("fast", print, "vendor-1", PLATFORM_PLUGINS_GROUP)
    install("slow", print, "vendor-2", PLATFORM_PLUGINS_GROUP)
    install("helper", print, "vendor-1")
    install("other", AssertionError("imported"), "vendor-2")
    install("general", print, "general")
    assert _get_excluded_dists() == set()
    monkeypatch.setenv("SGLANG_PLATFORM", "fast")
    assert _get_excluded_dists() == {"vendor-2"}
    loaded = load_plugins_by_group(GENERAL_PLUGINS_GROUP, excluded_dists=_get_excluded_dists())
    assert sorted(loaded) == ["general", "helper"]


def test_a_package_with_both_platforms_is_not_excluded(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("fast", print, "vendor", PLATFORM_PLUGINS_GROUP)
    install("slow", print, "vendor", PLATFORM_PLUGINS_GROUP)
    monkeypatch.setenv("SGLANG_PLATFORM", "fast")
    assert _get_excluded_dists() == set()
