"""How far the simulator's engine is from ours: its four numbers are measured on a CPU worker with
the demo model, and a run of requests is compared with the same run in the simulator.
"""

import json
import random
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

from bench.engine import THREADS, Ours, fresh
from bench.routing import build, simulate
from bench.rows import Row, write
from tests.e2e import processes

REPEATS = 3
PROMPTS = (64, 128, 256, 512)  # tokens
BATCHES, CONTEXTS, NEW = (1, 4, 8), (16, 256), 24
BLOCK, GROUPS, REQUESTS = 512, 4, 32
OWN, OUTPUT = (20, 120), (8, 32)  # tokens
LOAD = 0.5  # of what the worker can do
CHUNK = 512
ENV = {"OMP_NUM_THREADS": str(THREADS)}


@dataclass
class Speed:
    """The simulator's numbers, in seconds; `overhead`: of a request, outside of passes."""

    overhead: float
    per_prompt_token: float
    step: float
    per_request: float
    per_kv_token: float

    def flags(self) -> list[str]:
        return [
            "--prefill-rate", str(1 / self.per_prompt_token),
            "--step-ms", str(1e3 * self.step),
            "--request-us", str(1e6 * self.per_request),
            "--kv-token-ns", str(1e9 * self.per_kv_token),
        ]  # fmt: skip


@dataclass
class Request:
    at: float  # seconds
    group: int
    ids: list[int]
    new: int


@dataclass
class Times:
    first: float
    between: float


def least_squares(rows: list[list[float]], values: list[float]) -> list[float]:
    """Numbers ≥ 0 by which the columns add up to the values; one that would be below is 0."""
    kept = list(range(len(rows[0])))
    while True:
        found = _solve([[row[i] for i in kept] for row in rows], values)
        if min(found) >= 0:
            numbers = dict(zip(kept, found, strict=True))
            return [numbers.get(i, 0.0) for i in range(len(rows[0]))]
        del kept[found.index(min(found))]


def _solve(rows: list[list[float]], values: list[float]) -> list[float]:
    """The normal equations, by elimination."""
    size = len(rows[0])
    table = [
        [sum(row[i] * row[j] for row in rows) for j in range(size)]
        + [sum(row[i] * value for row, value in zip(rows, values, strict=True))]
        for i in range(size)
    ]
    for i in range(size):
        table[i] = [cell / table[i][i] for cell in table[i]]
        for k in range(size):
            if k != i:
                table[k] = [a - table[k][i] * b for a, b in zip(table[k], table[i], strict=True)]
    return [row[-1] for row in table]


def decode_step(side: Ours, batch: int, context: int, dice: random.Random) -> float:
    """Seconds of a pass that gives each of `batch` answers a token."""
    long = side.seconds(fresh(batch, context, dice), 1 + NEW)
    return (long - side.seconds(fresh(batch, context, dice), 1)) / NEW


def fit(side: Ours, dice: random.Random) -> Speed:
    side.seconds(fresh(1, 64, dice), 4)  # warms up
    shapes = [(batch, context) for batch in BATCHES for context in CONTEXTS] * REPEATS
    steps = [decode_step(side, batch, context, dice) for batch, context in shapes]
    decode = [[1.0, batch, batch * (context + NEW / 2)] for batch, context in shapes]
    step, per_request, per_kv_token = least_squares(decode, steps)
    lengths = PROMPTS * REPEATS
    prompts = [side.seconds(fresh(1, length, dice), 1) for length in lengths]
    fixed, per_prompt_token = least_squares([[1.0, length] for length in lengths], prompts)
    return Speed(max(fixed - step, 0.0), per_prompt_token, step, per_request, per_kv_token)


def requests(speed: Speed, dice: random.Random) -> list[Request]:
    """Groups that share a block of their prompts, at half of what the worker can do."""
    shared = fresh(GROUPS, BLOCK, dice)
    made, at = [], 0.0
    for _ in range(REQUESTS):
        group, own, new = dice.randrange(GROUPS), dice.randint(*OWN), dice.randint(*OUTPUT)
        ids = shared[group] + [dice.randrange(100, 48000) for _ in range(own)]
        made.append(Request(at, group, ids, new))
        work = own * speed.per_prompt_token + new * (speed.step + speed.per_request)
        at += dice.expovariate(LOAD / work)
    return made


def ask(url: str, request: Request, start: float) -> Times:
    """Sends it when its time has come."""
    delay = start + request.at - time.perf_counter()
    if delay > 0:
        time.sleep(delay)
    params = {"temperature": 0, "max_new_tokens": request.new, "ignore_eos": True}
    body = {"input_ids": request.ids, "sampling_params": params, "stream": True}
    message = urllib.request.Request(
        f"{url}/generate", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    sent = time.perf_counter()
    moments = []
    with urllib.request.urlopen(message, timeout=120) as reply:
        for line in reply:
            if line.startswith(b"data: {"):
                moments.append(time.perf_counter())
    return Times(moments[0] - sent, (moments[-1] - moments[0]) / (request.new - 1))


def simulated(made: list[Request], speed: Speed, kv_tokens: int, folder: Path) -> dict[str, float]:
    path = folder / "trace.jsonl"
    lines = [
        {"timestamp": 1e3 * r.at, "input_length": len(r.ids), "output_length": r.new,
         "hash_ids": [r.group, GROUPS + number]}
        for number, r in enumerate(made)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = simulate(
        "--from", str(path), "--workers", "1", "--policy", "cache_aware", "--page-size", "1",
        "--kv-tokens", str(kv_tokens), "--prefill-budget", str(CHUNK), *speed.flags(),
    )  # fmt: skip
    row = report["policies"]["cache_aware"]
    return {
        "first p50": row["ttft"]["p50"] + speed.overhead,
        "first p90": row["ttft"]["p90"] + speed.overhead,
        "between p50": row["tpot"]["p50"],
        "hit rate": row["hit_rate"],
    }


def at_share(values: list[float], share: float) -> float:
    return sorted(values)[max(0, -int(-share * len(values) // 1) - 1)]


def main() -> None:
    build()
    dice = random.Random(11)
    rows = {
        "first p50": Row("time to the first token, p50", "s", False),
        "first p90": Row("time to the first token, p90", "s", False),
        "between p50": Row("time between two tokens, p50", "s", False),
    }
    flags = ("--dtype", "float32", "--chunked-prefill-size", str(CHUNK))
    with (
        tempfile.TemporaryDirectory() as scratch,
        processes.front_door(Path(scratch), *flags, env=ENV) as server,
        ThreadPoolExecutor(REQUESTS) as pool,
    ):
        status, info, _ = processes.call(f"{server.url}/server_info")
        assert status == 200, info
        speed = fit(Ours(server), dice)
        print(f"{speed}\nsmg simulate {' '.join(speed.flags())}", flush=True)
        for _ in range(REPEATS):
            made = requests(speed, dice)
            start = time.perf_counter()
            times = list(pool.map(ask, repeat(server.url), made, repeat(start)))
            found = simulated(made, speed, int(info["max_total_num_tokens"]), Path(scratch))
            first, between = [t.first for t in times], [t.between for t in times]
            for key, value in {
                "first p50": at_share(first, 0.5), "first p90": at_share(first, 0.9),
                "between p50": at_share(between, 0.5),
            }.items():  # fmt: skip
                rows[key].add("ours", value)
                rows[key].add("simulated", found[key])
                print(f"{rows[key].name}: {value:.4f} s, simulated {found[key]:.4f}", flush=True)
    write("calibration", "The simulator's engine beside ours", list(rows.values()))
