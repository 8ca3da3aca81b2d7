"""An installed plugin behind the real command `sglang serve`."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests import plugin_packages
from tests.e2e import processes

MODEL = "some-model"
LINE = ["serve", MODEL, "--model-type", "my_runtime", "--pipeline-parallel", "2"]
Serve = Callable[..., processes.Server]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugin")
    wheel = plugin_packages.build_wheel("my-sglang-runtime", folder)
    return plugin_packages.install(wheel, folder / "packages")


@pytest.fixture
def serve(installed: Path, tmp_path: Path) -> Iterator[Serve]:
    """Starts a command with the plugin installed; ready when it says its port."""
    started: list[processes.Server] = []

    def start(*command: str | Path) -> processes.Server:
        log = tmp_path / f"serve-{len(started)}.log"
        server = processes.start(command, 0, log, {"PYTHONPATH": str(installed)})
        started.append(server)
        processes.until(lambda: port_of(server) or server.process.poll() is not None)
        server.port = port_of(server)
        assert server.port, server.log_text()
        return server

    yield start
    for server in started:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait(processes.STOP_GUARD)


def port_of(server: processes.Server) -> int:
    found = re.search(r"^my_runtime serves some-model on port (\d+)\n", server.log_text(), re.M)
    return int(found[1]) if found else 0


def is_over(pid: int) -> bool:
    """An orphan stays a zombie where nothing reaps it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


SGLANG = (sys.executable, "-m", "sglang.cli.main")


def test_s000_120_a_plugin_serves_and_its_processes_end_with_it(serve: Serve) -> None:
    server = serve(*SGLANG, *LINE, "--until", "1", "--other")
    status, state, _ = processes.call(f"{server.url}/")
    assert (status, state["model"], state["rest"]) == (200, MODEL, ["--other"])
    assert len(state["stages"]) == 2
    assert server.process.wait(processes.STOP_GUARD) == 0
    for pid in state["stages"]:
        processes.until(lambda pid=pid: is_over(pid))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_plugin_and_its_processes(
    serve: Serve, number: signal.Signals, code: int
) -> None:
    server = serve(*SGLANG, *LINE)
    stages = processes.call(f"{server.url}/")[1]["stages"]
    assert server.end(number) == code
    for pid in stages:
        processes.until(lambda pid=pid: is_over(pid))


def test_the_alias_command_serves_the_same(serve: Serve, installed: Path) -> None:
    server = serve(installed / "bin/my-runtime", "serve", MODEL, "--until", "1", "--other")
    state = processes.call(f"{server.url}/")[1]
    assert (state["model"], state["rest"]) == (MODEL, ["--other"])
    assert server.process.wait(processes.STOP_GUARD) == 0


def test_a_diffusion_folder_is_refused_by_name(tmp_path: Path) -> None:
    index = '{"_class_name": "FluxPipeline", "_diffusers_version": "0.35.0"}'
    (tmp_path / "model_index.json").write_text(index)
    done = subprocess.run(
        [*SGLANG, "serve", str(tmp_path)], env=os.environ, capture_output=True, text=True,
        timeout=processes.STOP_GUARD,
    )  # fmt: skip
    assert done.returncode == 1
    assert "'FluxPipeline'" in done.stderr and done.stderr.count("\n") == 1
