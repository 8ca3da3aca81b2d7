"""Both wheels, installed into an empty environment, serve the demo model from there."""

import shutil
import subprocess
from pathlib import Path

from tests.e2e import processes
from tests.e2e.processes import ROOT, call

GUARD = 1800


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=GUARD
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_installed_wheels_serve_the_demo_model(tmp_path: Path) -> None:
    uv = ROOT / ".make/boot/bin/uv"
    run("make", "build", cwd=ROOT)
    [router] = (ROOT / "dist").glob("sglang_router-1*.whl")
    [engine] = (ROOT / "dist").glob("sglang-1*.whl")
    # On the checkout's disk, so that uv links torch instead of copying it.
    venv = ROOT / ".make/wheel-test"
    shutil.rmtree(venv, ignore_errors=True)
    try:
        run(uv, "venv", "--quiet", venv, cwd=tmp_path)
        run(uv, "pip", "install", "--quiet", "-p", venv / "bin/python", "-c",
            ROOT / "constraints.txt", router, engine, cwd=tmp_path)  # fmt: skip
        assert "1.0.0" in run(venv / "bin/sglang", "version", cwd=tmp_path)
        assert "1.0.0" in run(venv / "bin/smg", "--version", cwd=tmp_path)
        port = processes.free_port()
        server = processes.start(
            [venv / "bin/sglang", "serve", "demo", "--port", str(port)],
            port,
            tmp_path / "serve.log",
        )
        try:
            server.wait("/readiness")
            body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
            status, reply, _ = call(f"{server.url}/v1/chat/completions", body)
            assert status == 200
            assert reply["usage"]["completion_tokens"] == 4
        finally:
            assert server.end() == 0
    finally:
        shutil.rmtree(venv, ignore_errors=True)
