"""The index of prefixes: keys of a prompt, lookups and updates on one core."""

import json
import subprocess

from bench.rows import ROOT, Row, write

EXAMPLE = "kv_index_bench"
BARS = {
    "keys of 4,096 tokens, page 16": "at most 60 µs",
    "lookup of 4,096 tokens, 64 workers part one by one, page 16": "at most 15 µs",
    "lookup of 4,096 tokens, another prompt each time, page 16": "at most 15 µs",
    "updates, stored and removed, pages held by 1, page 16": "at least 1 M blocks/s",
    "updates, stored and removed, pages held by 8, page 16": "at least 1 M blocks/s",
}


def measured() -> list[Row]:
    """Runs the crate's example; it prints one JSON object a row."""
    build = ["cargo", "build", "--locked", "--release", "-p", "smg-kv-index", "--example", EXAMPLE]
    subprocess.run(build, cwd=ROOT, check=True)
    done = subprocess.run(
        [ROOT / "target/release/examples" / EXAMPLE], capture_output=True, text=True, check=True
    )
    rows = []
    for line in done.stdout.splitlines():
        data = json.loads(line)
        row = Row(data["name"], data["unit"], data["unit"] == "M blocks/s")
        row.bar = BARS.get(row.name, "")
        row.samples["ours"] = data["samples"]
        rows.append(row)
    if missing := BARS.keys() - {row.name for row in rows}:
        raise SystemExit(f"bench.kv_index: {EXAMPLE} did not measure {', '.join(sorted(missing))}")
    return rows


def main() -> None:
    write("kv_index", "Index of prefixes, one core", measured())
