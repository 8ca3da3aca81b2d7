"""Killing a process with its descendants."""

import subprocess
import sys

import psutil
import pytest

from sglang.srt.utils import kill_process_tree
from tests.e2e import processes

GUARD = 60.0
WAIT = "import threading; threading.Event().wait(300)"
FAMILY = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {WAIT!r}])
print(child.pid, flush=True)
child.wait()
"""
CLEANS_UP_AFTER_ITSELF = f"""
import subprocess, sys
from sglang.srt.utils import kill_process_tree
child = subprocess.Popen([sys.executable, "-c", {WAIT!r}])
print(child.pid, flush=True)
kill_process_tree(None, include_parent={{}})
print(child.wait(60))
"""


def test_a_process_and_its_descendants_are_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    grandchild = int(parent.stdout.readline())
    kill_process_tree(parent.pid)
    assert parent.wait(GUARD) == -9
    processes.until(lambda: is_over(grandchild))
    kill_process_tree(parent.pid)  # gone already
    parent.stdout.close()


@pytest.mark.parametrize(("include_parent", "code"), [(False, 0), (True, -9)])
def test_this_process_may_be_spared(include_parent: bool, code: int) -> None:
    script = CLEANS_UP_AFTER_ITSELF.format(include_parent)
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    output, _ = process.communicate(timeout=GUARD)
    assert process.returncode == code
    child, *rest = output.split()
    assert rest == ([] if include_parent else ["-9"])
    processes.until(lambda: is_over(int(child)))


def is_over(pid: int) -> bool:
    """An orphan stays a zombie where nothing reaps it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
