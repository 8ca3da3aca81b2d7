"""Gateway in front of a fast simulated gRPC worker, beside the published gateways and no gateway.

Open loop at fixed rates by vegeta (HTTP) and, for the direct row, ghz (gRPC to the worker itself).
The gateway runs on one core, worker and load on the other.
"""

import base64
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import psutil

from bench.rows import ROOT, Row, write
from tests.e2e import processes
from tests.e2e.processes import Server, call, until
from tests.e2e.reference import demo_folder
from tests.peers.peers import GATEWAYS, published_gateway

DESCRIPTORS = ROOT / "engine/sglang/srt/entrypoints/wire.binpb"
GO_BIN = ROOT / ".make/go"
TOOLS = {
    "vegeta": "github.com/tsenart/vegeta/v12@v12.13.0",
    "ghz": "github.com/bojand/ghz/cmd/ghz@v0.93.0",
}
REPEATS = 3
SECONDS = 10
RATE = 500
TOKENS = 16
RELEASE = ROOT / "target/release"
GATEWAY_CORE, OTHER_CORE = "0", "1"
QUIET = ("--log-level", "warn")  # no line per request


def install_tools() -> None:
    """vegeta and ghz by `go install`, once."""
    if shutil.which("go") is None:
        raise SystemExit("bench.gateway needs Go to install vegeta and ghz.")
    for name, module in TOOLS.items():
        if not (GO_BIN / name).exists():
            print(f"==> {name}", flush=True)
            subprocess.run(
                ["go", "install", module], check=True, env={**os.environ, "GOBIN": str(GO_BIN)}
            )


def pinned(core: str, *command: str | Path) -> list[str]:
    return ["taskset", "-c", core, *(str(part) for part in command)]


def request_body(stream: bool) -> dict[str, Any]:
    text = "Tell me about the lighthouse on the northern cape, please. " * 3
    return {"model": "simulated", "messages": [{"role": "user", "content": text}],
            "max_tokens": TOKENS, "temperature": 0, "stream": stream}  # fmt: skip


def attack(url: str, rate: int, stream: bool, scratch: Path) -> dict[str, Any]:
    """One open-loop run: vegeta's JSON report."""
    targets = scratch / "targets.json"
    body = base64.b64encode(json.dumps(request_body(stream)).encode()).decode()
    targets.write_text(
        json.dumps({"method": "POST", "url": f"{url}/v1/chat/completions", "body": body,
                    "header": {"content-type": ["application/json"]}}) + "\n"
    )  # fmt: skip
    out = scratch / "attack.bin"
    with out.open("wb") as sink:
        subprocess.run(
            pinned(OTHER_CORE, GO_BIN / "vegeta", "attack", "-format=json", f"-targets={targets}",
                   f"-rate={rate}", f"-duration={SECONDS}s", "-timeout=10s", "-workers=32",
                   "-max-workers=256"),
            stdout=sink, check=True,
        )  # fmt: skip
    report = subprocess.run(
        [GO_BIN / "vegeta", "report", "-type=json", out], capture_output=True, check=True
    )
    return dict(json.loads(report.stdout))


def direct(worker: Server, scratch: Path) -> dict[str, float]:
    """p50 and p99 in milliseconds of the same call without a gateway."""
    call = {"request_id": "{{.RequestNumber}}-{{.WorkerID}}", "stream": True,
            "tokenized": {"input_ids": list(range(100, 145))},
            "sampling_params": {"max_new_tokens": TOKENS, "top_p": 1, "n": 1}}  # fmt: skip
    done = subprocess.run(
        pinned(OTHER_CORE, GO_BIN / "ghz", "--insecure", "--protoset", DESCRIPTORS,
               "--call", "sglang.grpc.scheduler.SglangScheduler/Generate", "-d", json.dumps(call),
               "-r", str(RATE), "-n", str(RATE * SECONDS), "-c", "16", "--connections", "4",
               "-O", "json", f"127.0.0.1:{worker.port}"),
        capture_output=True, check=True, cwd=scratch,
    )  # fmt: skip
    spread = {
        p["percentage"]: p["latency"] / 1e6 for p in json.loads(done.stdout)["latencyDistribution"]
    }
    return {"p50": spread[50], "p99": spread[99]}


def cpu_seconds(server: Server) -> float:
    main = psutil.Process(server.process.pid)
    return sum(
        sum(p.cpu_times()[:2]) for p in [main, *main.children(recursive=True)] if p.is_running()
    )


def simulator(scratch: Path) -> Server:
    port = processes.free_port()
    server = processes.start(
        pinned(OTHER_CORE, RELEASE / "smg-simulator", "--port", str(port), "--tokens", str(TOKENS),
               "--model", "simulated", "--tokenizer-dir", demo_folder()),
        port, scratch / "simulator.log",
    )  # fmt: skip
    return server


class Rows:
    """The rows of this benchmark. A gateway adds its latency less that of the direct row."""

    def __init__(self) -> None:
        self.direct = Row(f"p50 without a gateway, {RATE} req/s", "ms", False)
        bar = "added p50 at most 0.5 ms"
        self.p50 = Row(f"added p50, whole, {RATE} req/s", "ms", False, bar=bar)
        self.p99 = Row(f"p99, whole, {RATE} req/s", "ms", False)
        self.cpu = Row(f"CPU per request, whole, {RATE} req/s", "µs", False)
        self.s50 = Row(f"added p50, streamed, {RATE} req/s", "ms", False)
        self.scpu = Row(f"CPU per request, streamed, {RATE} req/s", "µs", False)
        self.most = Row("requests per second, whole, closed loop", "req/s", True)
        self.all = [self.direct, self.p50, self.p99, self.cpu, self.s50, self.scpu, self.most]


def measure(who: str, gateway: Server, bare: dict[str, float], rows: Rows, scratch: Path) -> None:
    until(lambda: call(f"{gateway.url}/v1/chat/completions", request_body(False))[0] == 200)
    for stream in (False, True):
        before = cpu_seconds(gateway)
        report = attack(gateway.url, RATE, stream, scratch)
        used = cpu_seconds(gateway) - before
        if report["success"] < 0.999:
            raise SystemExit(
                f"{who}: only {report['success']:.1%} succeeded: {report['errors'][:3]}"
            )
        latency = {name: value / 1e6 for name, value in report["latencies"].items()}
        cpu = 1e6 * used / report["requests"]
        if stream:
            rows.s50.add(who, latency["50th"] - bare["p50"])
            rows.scpu.add(who, cpu)
        else:
            rows.p50.add(who, latency["50th"] - bare["p50"])
            rows.p99.add(who, latency["99th"])
            rows.cpu.add(who, cpu)
    report = attack(gateway.url, 0, False, scratch)  # rate 0: as fast as 256 workers can
    rows.most.add(who, report["throughput"])


def ours(scratch: Path, worker: Server) -> Server:
    port = processes.free_port()
    return processes.start(
        pinned(GATEWAY_CORE, RELEASE / "smg", "launch", "--host", "127.0.0.1", "--port", str(port),
               "--worker-urls", worker.grpc_url, "--policy", "round_robin", *QUIET),
        port, scratch / "smg.log",
    )  # fmt: skip


def main() -> None:
    install_tools()
    rows = Rows()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        worker = simulator(scratch)
        try:
            for repeat in range(REPEATS):
                bare = direct(worker, scratch)
                rows.direct.add("direct", bare["p50"])
                rows.p99.add("direct", bare["p99"])
                print(f"repeat {repeat + 1}: direct p50 {bare['p50']:.3f} ms", flush=True)
                gateway = ours(scratch, worker)
                try:
                    gateway.wait("/readiness")
                    measure("ours", gateway, bare, rows, scratch)
                finally:
                    gateway.end()
                for peer in GATEWAYS:
                    with published_gateway(peer, scratch, worker, *QUIET) as theirs:
                        for process in [theirs.process.pid, *_children(theirs)]:
                            os.sched_setaffinity(process, {int(GATEWAY_CORE)})
                        measure(peer, theirs, bare, rows, scratch)
        finally:
            worker.end()
    write("gateway", "Gateway in front of a simulated gRPC worker, one core", rows.all)


def _children(server: Server) -> list[int]:
    return [child.pid for child in psutil.Process(server.process.pid).children(recursive=True)]


if __name__ == "__main__":
    main()
