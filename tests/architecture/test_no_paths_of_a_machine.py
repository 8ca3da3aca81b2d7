"""Nothing in the tree names a path of one machine or the host of a package registry."""

import re
import subprocess

from tests.architecture.budgets import ROOT

FORBIDDEN = re.compile(
    r"/work/(main|shared)|/root/|\bpypi\.org\b|files\.pythonhosted|static\.crates\.io|registry\.npmjs"
)
SELF = "tests/architecture/test_no_paths_of_a_machine.py"


def test_no_machine_path_or_registry_host() -> None:
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    found = []
    for name in filter(None, names):
        path = ROOT / name
        if name == SELF or not path.is_file():
            continue
        text = path.read_text(errors="ignore")
        found += [f"{name}: {m.group()}" for m in FORBIDDEN.finditer(text)]
    assert found == []
