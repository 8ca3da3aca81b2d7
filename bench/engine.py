"""Engine beside transformers' `generate`: decode at batch 1, 8 and 32, prefill of 1,024 tokens.

Both hold the same weights in float32 and use the same number of threads; repeats alternate. Ours is
measured through its HTTP front door, so that scheduling, gRPC and JSON are in the figure.
"""

import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.rows import Row, write
from tests.e2e import processes
from tests.e2e.reference import demo_folder

THREADS = 2
REPEATS = 5
DECODE_TOKENS = 64
PROMPT = 32
BATCHES = (1, 8, 32)
PREFILL = 1024


class Peer:
    """transformers in a process of its own."""

    def __init__(self) -> None:
        folder = demo_folder()
        gguf = next(folder.glob("*.gguf")).name
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.transformers_side", str(folder), gguf, str(THREADS)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(THREADS)},
        )  # fmt: skip
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def seconds(self, ids: list[list[int]], new: int) -> float:
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"ids": ids, "new": new}) + "\n")
        self.process.stdin.flush()
        return float(self._line())

    def end(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(60)


class Ours:
    """`python -m sglang.launch_server`."""

    def __init__(self, server: processes.Server) -> None:
        self.url = server.url

    def seconds(self, ids: list[list[int]], new: int, **more: Any) -> float:
        """Of one batch of so many new tokens each; `more` are sampling parameters."""
        params = {"temperature": 0, "max_new_tokens": new, "ignore_eos": True, **more}
        start = time.perf_counter()
        status, reply, _ = processes.call(
            f"{self.url}/generate", {"input_ids": ids, "sampling_params": params}
        )
        took = time.perf_counter() - start
        assert status == 200, reply
        assert all(r["meta_info"]["completion_tokens"] == new for r in reply)
        assert all(r["meta_info"]["cached_tokens"] == 0 for r in reply)
        return took


FIRST_IDS = itertools.count(100)


def fresh(count: int, length: int, dice: random.Random) -> list[list[int]]:
    """Prompts that no cache has seen: not even two first tokens are alike."""
    return [
        [next(FIRST_IDS), *(dice.randrange(100, 48000) for _ in range(length - 1))]
        for _ in range(count)
    ]


def measure(sides: dict[str, Peer | Ours]) -> list[Row]:
    dice = random.Random(3)
    rows = []
    for batch in BATCHES:
        row = Row(f"decode, batch {batch}", "tokens/s", True, bar="ahead of transformers")
        for repeat in range(REPEATS + 1):
            for who, side in sides.items():
                short = side.seconds(fresh(batch, PROMPT, dice), 1)
                long = side.seconds(fresh(batch, PROMPT, dice), 1 + DECODE_TOKENS)
                if repeat:  # the first one warms up
                    row.add(who, batch * DECODE_TOKENS / (long - short))
        print(f"{row.name}: {row.ratio('transformers'):.2f}× transformers", flush=True)
        rows.append(row)
    row = Row(f"prefill of {PREFILL} tokens", "tokens/s", True, bar="ahead of transformers")
    for repeat in range(REPEATS + 1):
        for who, side in sides.items():
            took = side.seconds(fresh(1, PREFILL, dice), 1)
            if repeat:
                row.add(who, PREFILL / took)
    rows.append(row)
    return rows


def main() -> None:
    peer = Peer()
    with (
        tempfile.TemporaryDirectory() as scratch,
        processes.front_door(
            Path(scratch), "--dtype", "float32", env={"OMP_NUM_THREADS": str(THREADS)}
        ) as server,
    ):
        rows = measure({"ours": Ours(server), "transformers": peer})
    peer.end()
    write("engine", f"Engine, SmolLM2-135M-Instruct, float32, {THREADS} threads", rows)


if __name__ == "__main__":
    main()
