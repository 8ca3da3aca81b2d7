"""The build hook as a program, which `make proto` runs without the build backend."""

import importlib.util
import sys
from pathlib import Path

import pytest

from sglang.srt.entrypoints import wire

HOOK = Path(__file__).resolve().parents[2] / "engine/hatch_build.py"


def test_compiles_the_protos_without_hatchling(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "hatchling.builders.hooks.plugin.interface", None)
    spec = importlib.util.spec_from_file_location("hatch_build", HOOK)
    assert spec is not None and spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    monkeypatch.setattr(hook, "TARGET", tmp_path / "wire.binpb")
    hook.write_descriptor_set()
    assert hook.TARGET.read_bytes() == wire.DESCRIPTOR_SET.read_bytes()
