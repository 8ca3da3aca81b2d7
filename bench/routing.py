"""What the choice of a worker is worth, in the simulator: hits beside the oracle's, and times to
the first token beside turns and beside the published gateway's cache-aware policy.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from bench.rows import ROOT, Row, write

SEEDS = (1, 2, 3)
GATEWAYS = (1, 4)
WORKERS = 8
SYNTHETIC = ("shared-prompts", "multi-turn", "agents")
PEERS = ("round_robin", "upstream_cache_aware")
SMG = ROOT / "target/release/smg"
TRACE = Path(os.environ.get("SGLANG_SHARED", ROOT.parent / "shared")) / (
    "data/mooncake-conversation.jsonl.gz"
)


def build() -> None:
    command = ["cargo", "build", "--release", "-j1", "-p", "sgl-model-gateway", "--bin", "smg"]
    subprocess.run(command, cwd=ROOT, check=True)


def simulate(*flags: str) -> dict[str, Any]:
    """The report; `policies` by name."""
    done = subprocess.run(
        [SMG, "simulate", "--format", "json", *flags],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    report: dict[str, Any] = json.loads(done.stdout)
    report["policies"] = {row["policy"]: row for row in report["policies"]}
    return report


def measure(name: str, *flags: str, bar: str = "") -> list[Row]:
    hits = Row(f"{name}: hit rate beside the oracle's", "share", True, bar=bar)
    middle = Row(f"{name}: time to the first token, median", "s", False)
    worst = Row(f"{name}: time to the first token, p99", "s", False)
    who = {"cache_aware": "ours", **{peer: peer for peer in PEERS}, "oracle": "oracle"}
    for seed in SEEDS:
        report = simulate(
            "--workers", str(WORKERS), "--policy", ",".join(who), "--seed", str(seed), *flags
        )
        for policy, label in who.items():
            row = report["policies"][policy]
            hits.add(label, row["hit_rate_of_oracle"])
            middle.add(label, row["ttft"]["p50"])
            worst.add(label, row["ttft"]["p99"])
    return [hits, middle, worst]


def main() -> None:
    build()
    rows: list[Row] = []
    for gateways in GATEWAYS:
        title = f"{gateways} gateway{'s' if gateways > 1 else ''}"
        if TRACE.exists():
            # Its blocks are of 512 tokens: larger pages than 16 say the same, sooner.
            flags = ("--from", str(TRACE), "--page-size", "64", "--gateways", str(gateways))
            rows += measure(f"published trace, {title}", *flags, bar="ours at least 0.95")
        else:
            print(f"bench.routing: no published trace, as {TRACE} is not there", flush=True)
        for trace in SYNTHETIC:
            rows += measure(f"{trace}, {title}", "--trace", trace, "--gateways", str(gateways))
    write("routing", f"Routing in the simulator, {WORKERS} workers", rows)
