"""The type stubs and the manifest say what the compiled module is."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import sglang_router
from sglang_router import sglang_router_rs
from sglang_router.version import get_verbose_version_string

ROOT = Path(__file__).resolve().parents[3]


def test_stubtest_finds_no_difference(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "sglang_router.sglang_router_rs"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_exported_name_loads() -> None:
    for name in sglang_router.__all__:
        assert getattr(sglang_router, name) is not None


def test_the_wheel_has_the_version_of_the_crate() -> None:
    version = sglang_router_rs.get_version_string()
    assert f'version = "{version}"' in (ROOT / "Cargo.toml").read_text()
    assert importlib.metadata.version("sglang-router") == sglang_router.__version__ == version
    assert version in get_verbose_version_string()


def test_the_wheel_depends_on_nothing() -> None:
    assert importlib.metadata.requires("sglang-router") is None


def test_the_three_commands_are_one_function() -> None:
    scripts = importlib.metadata.distribution("sglang-router").entry_points
    assert {(script.name, script.value) for script in scripts} == {
        (name, "sglang_router.cli:main") for name in ("smg", "amg", "sglang-router")
    }


def test_the_manifest_names_its_sources_first() -> None:
    lines = (ROOT / "bindings/python/pyproject.toml").read_text().splitlines()
    table = lines.index("[tool.maturin]")
    assert lines[table + 1 : table + 3] == [
        'python-source = "src"',
        'module-name = "sglang_router.sglang_router_rs"',
    ]
