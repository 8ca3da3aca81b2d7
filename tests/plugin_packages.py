"""Builds the plugin packages of tests/fixtures/plugins and installs them without a network."""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.architecture.budgets import ROOT

UV = ROOT / ".make/boot/bin/uv"
PLUGINS = ROOT / "tests/fixtures/plugins"
GUARD = 120.0


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=GUARD
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def build_wheel(name: str, folder: Path) -> Path:
    """The wheel of a plugin, made in `folder`; the sources stay as they are."""
    source = shutil.copytree(PLUGINS / name, folder / name)
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / "dist",
        cwd=source)  # fmt: skip
    [wheel] = (folder / "dist").glob("*.whl")
    return wheel


def install(wheel: Path, target: Path) -> Path:
    """Installs a wheel into a folder that PYTHONPATH can name; returns the folder."""
    run(UV, "pip", "install", "--quiet", "--offline", "--no-index", "--no-deps",
        "--python", sys.executable, "--target", target, wheel, cwd=target.parent)  # fmt: skip
    return target


def what_would_be_installed(wheel: Path) -> str:
    """What an installer says of the wheel and its dependencies in this environment."""
    return run(UV, "pip", "install", "--dry-run", "--offline", "--no-index",
               "--python", sys.executable, wheel, cwd=wheel.parent)  # fmt: skip
