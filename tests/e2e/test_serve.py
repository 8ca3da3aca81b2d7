"""`make serve`: one command gives a gateway and two workers; Ctrl-C leaves nothing running."""

import os
import re
import signal
import subprocess
import threading

import psutil

from tests.e2e import processes
from tests.e2e.processes import ROOT, START_GUARD, STOP_GUARD, call


def test_one_command_serves_and_ctrl_c_ends_everything() -> None:
    port = processes.free_port()
    process = subprocess.Popen(
        ["make", "serve", f"PORT={port}", "WORKERS=2"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    guard = threading.Timer(START_GUARD, process.kill)
    guard.start()
    try:
        assert process.stdout
        ready = next(line for line in process.stdout if line.startswith("Ready"))
        curl = process.stdout.readline()
        assert f"http://127.0.0.1:{port} serves demo with 2 workers" in ready
        assert re.match(rf"  curl http://127\.0\.0\.1:{port}/v1/chat/completions ", curl)
        tried = subprocess.run(
            ["bash", "-c", curl], capture_output=True, text=True, timeout=120, check=True
        )
        assert '"finish_reason"' in tried.stdout
        workers = call(f"http://127.0.0.1:{port}/workers")[1]
        assert [w["is_healthy"] for w in workers["workers"]] == [True, True]
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) >= 5  # the fleet, the gateway, two launchers, their schedulers
        drain = threading.Thread(target=process.stdout.read)
        os.killpg(process.pid, signal.SIGINT)  # what a terminal does on Ctrl-C
        drain.start()
        process.wait(STOP_GUARD)
        _, alive = psutil.wait_procs(family, timeout=STOP_GUARD)
        assert alive == []
        assert processes.get_status(f"http://127.0.0.1:{port}/liveness") is None
    finally:
        guard.cancel()
        process.kill()
