"""Statements of the plugin guide about general plugins of the language runtime."""

import argparse
import inspect
import runpy
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sglang.srt import plugins
from sglang.srt.entrypoints import engine, launch
from sglang.srt.managers import scheduler
from sglang.srt.plugins import hook_registry
from sglang.srt.plugins.hook_registry import HookRegistry, HookType, plugin_hook
from sglang.srt.server_args import PortArgs, ServerArgs, prepare_server_args
from tests.plugin_packages import PLUGINS

PORTS = PortArgs("ipc:///in", "ipc:///out")


@pytest.fixture(autouse=True)
def no_hooks() -> Iterator[None]:
    HookRegistry.reset()
    yield
    HookRegistry.reset()


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collects what is called; loading plugins is the first thing that is noted."""
    called: list[str] = []
    monkeypatch.setattr(plugins, "load_plugins", lambda: called.append("load_plugins"))
    return called


# ------------------------------------------------------------------ the package of the guide


def test_metadata_of_the_guide_s_package() -> None:
    text = (PLUGINS / "my-general-plugin/pyproject.toml").read_text()
    assert 'name = "my-general-plugin"\nversion = "0.1.0"' in text
    group = '[project.entry-points."sglang.srt.plugins"]'
    assert f'{group}\nmy_plugin = "my_general_plugin:register"' in text


# ------------------------------------------------------------------ where plugins are loaded


def test_launch_server_loads_them_before_it_reads_options(
    order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "main", lambda argv: order.append("main") or 0)
    with pytest.raises(SystemExit):
        runpy.run_module("sglang.launch_server", run_name="__main__")
    assert order == ["load_plugins", "main"]


def test_the_launcher_loads_them_before_it_checks_options(
    order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = SimpleNamespace(start=lambda: order.append("start"))
    spawning = SimpleNamespace(Process=lambda **parts: process)
    monkeypatch.setattr(engine.multiprocessing, "get_context", lambda method: spawning)
    monkeypatch.setattr(ServerArgs, "check_server_args", lambda self: order.append("check"))
    engine._launch_subprocesses(ServerArgs(model_path="dummy"), PORTS)
    assert order == ["load_plugins", "check", "start"]


def test_the_scheduler_process_loads_them_before_anything_else(
    order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(ports: PortArgs) -> Any:
        order.append("connect")
        raise InterruptedError

    monkeypatch.setattr(scheduler, "connect", connect)
    with pytest.raises(InterruptedError):
        scheduler.run_scheduler_process(ServerArgs(model_path="dummy"), PORTS)
    assert order == ["load_plugins", "connect"]


def test_loading_follows_the_documented_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[Any] = []

    def plugin() -> None:
        steps.append(str(hook_registry._current_plugin_source.get()))

    def by_group(group: str, excluded_dists: Any) -> Any:
        steps.append((group, excluded_dists))
        return {"p": (plugin, "d")}

    monkeypatch.setattr(plugins, "_plugins_loaded", False)
    monkeypatch.setattr(plugins, "_get_excluded_dists", lambda: {"other"})
    monkeypatch.setattr(plugins, "load_plugins_by_group", by_group)
    monkeypatch.setattr(HookRegistry, "apply_hooks", lambda: steps.append("apply_hooks"))
    plugins.load_plugins()
    plugins.load_plugins()
    assert steps == [
        ("sglang.srt.plugins", {"other"}), "plugin 'p' (distribution d)", "apply_hooks",
    ]  # fmt: skip


# ------------------------------------------------------------------ the two ways to register


def test_the_imperative_and_the_decorator_form() -> None:
    target = "sglang.srt.managers.scheduler.Scheduler.get_next_batch_to_run"

    def my_timer(original_fn: Any, *args: Any, **kwargs: Any) -> Any:
        return original_fn(*args, **kwargs)

    HookRegistry.register(target, my_timer, HookType.AROUND)
    assert plugin_hook(target, type=HookType.AROUND)(my_timer) is my_timer
    assert [(h.target, h.kind) for h in HookRegistry.registered()] == [
        (target, HookType.AROUND)
    ] * 2


@pytest.mark.parametrize("kind", [HookType.BEFORE, HookType.AFTER, HookType.AROUND])
def test_a_class_is_refused_when_it_registers(kind: HookType) -> None:
    with pytest.raises(TypeError, match="only HookType.REPLACE takes a class"):
        plugin_hook("sglang.srt.managers.scheduler.Scheduler", type=kind)(dict)


def test_a_colon_counts_as_a_dot() -> None:
    HookRegistry.register("sglang.srt.managers.scheduler:Scheduler.__init__", print)
    (hook,) = HookRegistry.registered()
    assert hook.target == "sglang.srt.managers.scheduler.Scheduler.__init__"


# ------------------------------------------------------------------ hooks on the options


@pytest.fixture
def hooked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restores what the hooks of a test patch on ServerArgs."""
    for name in ("add_cli_args", "__post_init__", "check_server_args"):
        monkeypatch.setattr(ServerArgs, name, inspect.getattr_static(ServerArgs, name))


def test_a_hook_adds_a_flag(hooked: None) -> None:
    def add(result: None, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--vendor-depth", type=int, default=2)

    HookRegistry.register("sglang.srt.server_args.ServerArgs.add_cli_args", add)
    HookRegistry.apply_hooks()
    for argv, value in (([], 2), (["--vendor-depth", "7"], 7)):
        args = prepare_server_args(["--model-path", "dummy", *argv])
        assert args.plugin_options == {"vendor_depth": value}


def test_a_hook_changes_options_after_parsing(hooked: None) -> None:
    HookRegistry.register(
        "sglang.srt.server_args.ServerArgs.__post_init__",
        lambda result, self: setattr(self, "stream_interval", 9),
    )
    HookRegistry.apply_hooks()
    args = prepare_server_args(["--model-path", "dummy"])
    assert (args.stream_interval, args.sealed) == (9, True)


def test_a_hook_adds_a_check(hooked: None, capsys: pytest.CaptureFixture[str]) -> None:
    def check(self: ServerArgs) -> None:
        if self.page_size == 3:
            raise ValueError("--page-size: the vendor's pages are even")

    HookRegistry.register(
        "sglang.srt.server_args.ServerArgs.check_server_args", check, HookType.BEFORE
    )
    HookRegistry.apply_hooks()
    with pytest.raises(SystemExit):
        prepare_server_args(["--model-path", "dummy", "--page-size", "3"])
    assert "the vendor's pages are even" in capsys.readouterr().err


def test_files_and_their_content() -> None:
    assert inspect.getfile(plugins).endswith("sglang/srt/plugins/__init__.py")
    assert all(hasattr(plugins, name) for name in ("load_plugins", "load_plugins_by_group"))
    assert inspect.getfile(hook_registry).endswith("sglang/srt/plugins/hook_registry.py")
    assert all(hasattr(hook_registry, n) for n in ("HookRegistry", "HookType", "plugin_hook"))
