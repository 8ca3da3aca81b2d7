"""The commands on the pages under docs/ run as they stand; links lead to files."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.processes import ROOT, Server

PAGES = sorted((ROOT / "docs").glob("*.md"))
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+?)(?:#[^)]*)?\)")
BLOCKS = [
    pytest.param(kind, code, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, (kind, code) in enumerate(BLOCK.findall(page.read_text()))
]


@pytest.mark.parametrize("kind,code", BLOCKS)
def test_block_runs(server: Server, kind: str, code: str) -> None:
    code = code.replace("localhost:30000", f"127.0.0.1:{server.port}")
    program = [sys.executable, "-c"] if kind == "python" else ["bash", "-euo", "pipefail", "-c"]
    # As with the environment activated: `sglang` and `python3` are those under test.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [*program, code], env={**os.environ, "PATH": path},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "the block shows nothing"


@pytest.mark.parametrize("page", [*PAGES, *ROOT.glob("*.md")], ids=lambda p: p.name)
def test_links_lead_somewhere(page) -> None:
    missing = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert missing == []
