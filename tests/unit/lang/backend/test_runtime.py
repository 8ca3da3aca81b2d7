"""A server as a child process: what can be said without starting a whole one."""

import subprocess
import sys

import psutil
import pytest

import sglang as sgl
from sglang.lang.backend.runtime import _flags, _free_port


def test_options_become_flags() -> None:
    options = {
        "model_path": "demo", "page_size": 16, "disable_radix_cache": True, "grpc_mode": False,
        "dtype": None, "names": ["a", "b"], "extra": {"k": 1},
    }  # fmt: skip
    assert _flags(options) == [
        "--model-path", "demo", "--page-size", "16", "--disable-radix-cache",
        "--names", "a", "b", "--extra", '{"k": 1}',
    ]  # fmt: skip


def test_a_free_port_is_found_in_the_documented_range() -> None:
    assert 30000 <= _free_port() < 40000


def test_a_server_that_cannot_start_says_so(tmp_path) -> None:
    with pytest.raises(RuntimeError, match="the server ended with code 1 before it was ready"):
        sgl.Runtime(model_path=str(tmp_path / "nothing"), launch_timeout=120)


def test_a_server_that_is_late_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    real, started = subprocess.Popen, []

    def idle(command: list[str], **options):
        assert command[1:3] == ["-m", "sglang.launch_server"]
        process = real([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        started.append(process)
        return process

    monkeypatch.setattr(subprocess, "Popen", idle)
    with pytest.raises(TimeoutError, match="not ready after 0 s"):
        sgl.Runtime(model_path="demo", launch_timeout=0)
    assert started[0].poll() is not None
    assert not psutil.pid_exists(started[0].pid)
