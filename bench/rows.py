"""Rows of measurements, their spread, and how they are written down."""

import json
import platform
import statistics
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench/results"


@dataclass
class Row:
    """One measured thing: repeats of ours and of each peer, in `unit`."""

    name: str
    unit: str
    higher_is_better: bool
    samples: dict[str, list[float]] = field(default_factory=dict)  # who → one value a repeat
    bar: str = ""

    def add(self, who: str, value: float) -> None:
        self.samples.setdefault(who, []).append(value)

    def median(self, who: str) -> float:
        return statistics.median(self.samples[who])

    def spread(self, who: str) -> float:
        """Half the range over the median."""
        values = self.samples[who]
        middle = statistics.median(values)
        return (max(values) - min(values)) / 2 / middle if middle else 0.0

    def ratio(self, peer: str, ours: str = "ours") -> float:
        """Above 1 means that ours is ahead."""
        a, b = self.median(ours), self.median(peer)
        if self.higher_is_better:
            return a / b if b else float("inf")
        return b / a if a else float("inf")


def table(title: str, rows: list[Row]) -> str:
    """A Markdown table: medians with spread, and ratios (above 1: ours is ahead)."""
    lines = [
        f"### {title}",
        "",
        "| what | unit | who | median | spread | ours ahead by |",
        "|---|---|---|--:|--:|--:|",
    ]
    for row in rows:
        for who in row.samples:
            ratio = "" if who == "ours" or "ours" not in row.samples else f"{row.ratio(who):.2f}×"
            lines.append(
                f"| {row.name} | {row.unit} | {who} | {row.median(who):.4g} "
                f"| ±{100 * row.spread(who):.0f} % | {ratio} |"
            )
    bars = [f"- {row.name}: {row.bar}" for row in rows if row.bar]
    return "\n".join([*lines, "", *bars, ""])


def machine() -> str:
    """CPU model, cores and memory of this machine in words."""
    info = Path("/proc/cpuinfo").read_text()
    model = next(
        (x.split(":")[1].strip() for x in info.splitlines() if x.startswith("model name")), "CPU"
    )
    return f"{model}, {info.count('processor')} cores, Python {platform.python_version()}"


def write(name: str, title: str, rows: list[Row]) -> None:
    """Prints the table and keeps the numbers as JSON beside it."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = table(title, rows)
    print(f"\n{text}", flush=True)
    data = {
        "machine": machine(),
        "rows": [
            {"name": r.name, "unit": r.unit, "samples": r.samples, "bar": r.bar} for r in rows
        ],
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
    (RESULTS / f"{name}.md").write_text(f"{text}\nMachine: {machine()}\n")
