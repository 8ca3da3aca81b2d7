"""A server as a child process: what can be said without starting a whole one."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import sglang as sgl
from sglang.lang.backend.runtime import _free_port


def test_a_free_port_is_found_in_the_documented_range() -> None:
    assert 30000 <= _free_port() < 40000


def test_a_server_that_cannot_start_says_so(tmp_path) -> None:
    with pytest.raises(RuntimeError, match="the server ended with code 1 before it was ready"):
        sgl.Runtime(model_path=str(tmp_path / "nothing"), launch_timeout=120)


def test_a_server_that_is_late_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    real, started = subprocess.Popen, []

    def idle(command: list[str], **options):
        """Starts what never answers, and keeps the options that were meant for the server."""
        assert command[1:4] == ["-m", "sglang.launch_server", "--config"]
        assert Path(command[4]).stat().st_mode & 0o077 == 0  # nobody else reads the key
        process = real([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        started.append((process, json.loads(Path(command[4]).read_text()), Path(command[4])))
        return process

    monkeypatch.setattr(subprocess, "Popen", idle)
    with pytest.raises(TimeoutError, match="not ready after 0 s"):
        sgl.Runtime(
            model_path="demo", page_size=16, api_key="k", dtype=None, port=30999, launch_timeout=0
        )
    process, options, file = started[0]
    assert options == {
        "model_path": "demo", "page_size": 16, "api_key": "k", "host": "127.0.0.1",
        "port": 30999, "log_level": "error",
    }  # fmt: skip
    assert process.poll() is not None
    assert not psutil.pid_exists(process.pid)
    assert not file.exists()
