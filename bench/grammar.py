"""What constraints cost: 16 constrained streams beside free ones, by both built-in backends."""

import json
import random
import tempfile
from pathlib import Path

from bench.engine import DECODE_TOKENS, PROMPT, THREADS, Ours, fresh
from bench.rows import Row, write
from tests.e2e import processes

STREAMS = 16
REPEATS = 5
BACKENDS = ("llguidance", "xgrammar")
# An array that no answer of the measurement can finish.
SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "count": {"type": "integer"}},
        "required": ["name", "count"],
        "additionalProperties": False,
    },
    "minItems": DECODE_TOKENS,
}
SIDES = {"free": {}, "ours": {"json_schema": json.dumps(SCHEMA)}}


def throughput() -> list[Row]:
    """A server per backend; free and constrained batches alternate in it."""
    dice = random.Random(6)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for backend in BACKENDS:
            row = Row(f"{STREAMS} streams, {backend}", "tokens/s", True)
            row.bar = "at least 0.9 of free ones"
            env = {"OMP_NUM_THREADS": str(THREADS)}
            flags = ("--dtype", "float32", "--grammar-backend", backend)
            with processes.front_door(Path(scratch), *flags, env=env) as server:
                side = Ours(server)
                for repeat in range(REPEATS + 1):
                    for who, constraint in SIDES.items():
                        ids = fresh(STREAMS, PROMPT, dice)
                        short = side.seconds(ids, 1, **constraint)
                        ids = fresh(STREAMS, PROMPT, dice)
                        long = side.seconds(ids, 1 + DECODE_TOKENS, **constraint)
                        if repeat:
                            row.add(who, STREAMS * DECODE_TOKENS / (long - short))
            print(f"{row.name}: {row.ratio('free'):.2f}× free ones", flush=True)
            rows.append(row)
    return rows


def main() -> None:
    write("grammar", f"Constrained streams, SmolLM2-135M-Instruct, {THREADS} threads", throughput())
