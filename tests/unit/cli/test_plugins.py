"""`sglang plugins list`: one line a name, every seam, no torch before it is asked."""

import subprocess
import sys

import pytest

from sglang.cli import plugins
from sglang.cli.main import main
from sglang.cli.plugins import Row, lines
from sglang.extension.registry import Registry
from sglang.srt import extension_points
from sglang.srt.plugins.hook_registry import HookRegistry, HookType


def cells() -> dict[tuple[str, str], tuple[str, str]]:
    return {(row.seam, row.name): (row.source, row.state) for row in plugins.rows()}


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins"]) == 2
    assert "usage: sglang plugins list" in capsys.readouterr().err
    assert main(["plugins", "--help"]) == 0
    assert main(["plugins", "list", "more"]) == 2


def test_every_registry_is_a_seam_with_its_names() -> None:
    shown = cells()
    registries = [r for r in vars(extension_points).values() if isinstance(r, Registry)]
    assert len(registries) >= 6
    for registry in registries:
        for name in registry or [plugins.NOTHING]:
            assert (registry.kind, name) in shown
    assert shown["schedule policy", "lpm"] == (
        "sglang.srt.managers.schedule_policy:longest_prefix_first", "built in",
    )  # fmt: skip


def test_a_seam_without_names_is_shown_too() -> None:
    assert cells()["model override", plugins.NOTHING][1] == "nothing registered"


def test_what_a_plugin_registers_is_told_from_what_is_built_in() -> None:
    extension_points.EVICTION_POLICIES.register("mine", dict, source="vendor.cache:Mine")
    HookRegistry.register("json.dumps", print, HookType.BEFORE, source="plugin 'p'")
    try:
        shown = cells()
    finally:
        del extension_points.EVICTION_POLICIES["mine"]
        HookRegistry.reset()
    assert shown["eviction policy", "mine"] == ("vendor.cache:Mine", "registered")
    assert shown["hook", "json.dumps"] == ("plugin 'p'", "registered, BEFORE")


def test_columns_line_up() -> None:
    text = lines([Row("a", "long name", "s", "on"), Row("longer seam", "b", "source", "off")])
    assert text == [
        "SEAM         NAME       SOURCE  STATE",
        "a            long name  s       on",
        "longer seam  b          source  off",
    ]


def test_the_command_itself_is_light() -> None:
    code = (
        "import sys, sglang.cli.plugins; print([n for n in ('torch', 'grpc') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
