"""`make soak N=2000`: mixed requests with cancels, priorities and sessions against one worker,
whose pool is so small that running requests are retracted and pushed out.

Every finished greedy answer must be right, all pages must come back, and anonymous memory of the
worker must not grow by more than 1 KiB a request over the last half.
"""

import argparse
import http.client
import json
import random
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.e2e import processes
from tests.e2e.processes import Server, call

CLIENTS = 64
SLOPE_LIMIT = 1024.0  # bytes a request
SAMPLES = 40
POOL = 1024  # tokens
GUARD = 300.0
KINDS = [("whole", 4), ("stream", 4), ("leave", 3), ("sampled", 2), ("session", 2)]
PRIORITIES = [None, 0, 5, 50]
NEXT_TURN = [504, 3575, 282]
# Admission that hopes for short answers, and answers that run beside long prompts.
FLAGS = [
    "--max-total-tokens", str(POOL), "--schedule-conservativeness", "0.01",
    "--enable-priority-scheduling", "--enable-mixed-chunk",
]  # fmt: skip


@dataclass(frozen=True)
class Wanted:
    """What the answers to one prompt are, and to the next turn of its session."""

    body: dict[str, Any]
    first: list[int]
    second: list[int]


@dataclass
class Outcome:
    """What the soak saw."""

    done: int = 0
    left: int = 0
    wrong: list[str] = field(default_factory=list)
    samples: list[tuple[int, int]] = field(default_factory=list)  # requests done, bytes
    pages: str = ""
    retracted: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def slope(self) -> float:
        """Bytes a request over the last half, by least squares."""
        half = self.samples[len(self.samples) // 2 :]
        mean_x = sum(x for x, _ in half) / len(half)
        mean_y = sum(y for _, y in half) / len(half)
        spread = sum((x - mean_x) ** 2 for x, _ in half)
        return sum((x - mean_x) * (y - mean_y) for x, y in half) / spread if spread else 0.0


def prompts() -> list[dict]:
    """Thirty-two greedy requests of mixed lengths; a third of them share a prefix."""
    dice = random.Random(5)
    shared = [dice.randrange(100, 40000) for _ in range(200)]
    made = []
    for index in range(32):
        own = [dice.randrange(100, 40000) for _ in range(dice.choice([3, 17, 60, 200]))]
        ids = shared + own if index % 3 == 0 else own
        params = {"temperature": 0, "max_new_tokens": dice.choice([1, 4, 9, 16, 48])}
        made.append({"input_ids": ids, "sampling_params": params})
    return made


def leave_early(server: Server, body: dict, dice: random.Random) -> None:
    """Streams a long answer and closes the connection after a few events, or before any."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=GUARD)
    body = {**body, "stream": True, "sampling_params": {"max_new_tokens": 500, "ignore_eos": True}}
    connection.request("POST", "/generate", json.dumps(body), {"content-type": "application/json"})
    if events := dice.randrange(4):
        reply = connection.getresponse()
        for _ in range(events):
            reply.readline()
    connection.close()


def one(server: Server, number: int, made: list[Wanted], out: Outcome) -> None:
    dice = random.Random(number)
    wanted = dice.choice(made)
    body = {**wanted.body, "priority": dice.choice(PRIORITIES)}
    kind = dice.choices([k for k, _ in KINDS], [w for _, w in KINDS])[0]
    if kind == "leave":
        leave_early(server, body, dice)
    elif kind == "sampled":
        params = {"max_new_tokens": 8, "temperature": 0.9, "top_p": 0.9, "presence_penalty": 0.5}
        call(f"{server.url}/generate", {**body, "sampling_params": params})
    elif kind == "session":
        two_turns(server, number, body, wanted, out)
    elif kind == "stream":
        got = processes.events(f"{server.url}/generate", {**body, "stream": True})[-2]["output_ids"]
        _check(out, number, got, wanted.first)
    else:
        _check(out, number, output_ids(server, body), wanted.first)
    with out.lock:
        out.done += 1
        out.left += kind == "leave"


def two_turns(server: Server, number: int, body: dict, wanted: Wanted, out: Outcome) -> None:
    """The second request sends three tokens; the engine knows the rest."""
    _, session_id, _ = call(f"{server.url}/open_session", {"capacity_of_str_len": 0})
    ref = {"id": session_id}
    first = output_ids(server, {**body, "rid": f"{number}-1", "session_params": ref})
    _check(out, number, first, wanted.first)
    ref = {"id": session_id, "rid": f"{number}-1"}
    second = {**body, "input_ids": NEXT_TURN, "rid": f"{number}-2", "session_params": ref}
    _check(out, number, output_ids(server, second), wanted.second)
    call(f"{server.url}/close_session", {"session_id": session_id})


def output_ids(server: Server, body: dict) -> object:
    """The answer, or the whole reply when there is none."""
    status, reply, _ = call(f"{server.url}/generate", body)
    return reply["output_ids"] if status == 200 else reply


def wanted_of(server: Server, body: dict) -> Wanted:
    first = list(output_ids(server, body))  # type: ignore[call-overload]
    following = {**body, "input_ids": body["input_ids"] + first + NEXT_TURN}
    return Wanted(body, first, list(output_ids(server, following)))  # type: ignore[call-overload]


def _check(out: Outcome, number: int, got: object, want: list[int]) -> None:
    if got != want:
        with out.lock:
            out.wrong.append(f"request {number}: {str(got)[:120]} instead of {want}")


def warm_up(server: Server) -> None:
    """What takes memory once is no loss later: every slot, and products of every number of rows."""
    for length in [*range(2, 64, 8), *range(64, 513, 32), POOL]:
        body = {"input_ids": [length] * length, "sampling_params": {"max_new_tokens": 1}}
        status, reply, _ = call(f"{server.url}/generate", body)
        assert status == 200, reply


def settled_bytes(server: Server) -> int:
    """Anonymous memory once nothing runs and every cache is empty: what differs is lost."""
    _await_idle(server)
    status, reply, _ = call(f"{server.url}/flush_cache", method="POST", raw=b"")
    assert status == 200, reply
    return anonymous_bytes(server)


def anonymous_bytes(server: Server) -> int:
    """Private anonymous memory of the worker's processes."""
    main = psutil.Process(server.process.pid)
    total = 0
    for process in [main, *main.children(recursive=True)]:
        rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
        total += next(
            int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Anonymous")
        )
    return total * 1024


def run(server: Server, requests: int) -> Outcome:
    made = [wanted_of(server, body) for body in prompts()]
    out = Outcome()
    step = max(CLIENTS, requests // SAMPLES)
    with ThreadPoolExecutor(CLIENTS) as pool:
        for first in range(0, requests, step):
            numbers = range(first, min(first + step, requests))
            list(pool.map(lambda n: one(server, n, made, out), numbers))
            out.samples.append((out.done, settled_bytes(server)))
            print(f"\r{out.done} of {requests}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    _await_idle(server)
    info = call(f"{server.url}/server_info")[1]
    held = info["internal_states"][0]["num_used_tokens"]
    out.retracted = info["internal_states"][0]["num_retracted_requests_total"]
    status, reply, _ = call(f"{server.url}/flush_cache", method="POST", raw=b"")
    state = call(f"{server.url}/server_info")[1]["internal_states"][0]
    kept = state["num_used_tokens"] + state["cache_evictable_tokens"]
    total = info["max_total_num_tokens"]
    out.pages = f"{total - kept} of {total} free after a flush, {held} held before it"
    if status != 200 or kept or held:
        out.wrong.append(f"pages: {out.pages} (flush answered {status}: {reply})")
    return out


def _await_idle(server: Server) -> None:
    end = time.monotonic() + GUARD
    while time.monotonic() < end:
        load = call(f"{server.url}/v1/loads")[1]["loads"][0]
        if load["num_running_reqs"] == load["num_waiting_reqs"] == 0:
            return
        threading.Event().wait(0.05)
    raise AssertionError("requests still run")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    requests = parser.parse_args().requests
    with (
        tempfile.TemporaryDirectory() as scratch,
        processes.front_door(Path(scratch), "--dtype", "float32", *FLAGS) as server,
    ):
        warm_up(server)
        out = run(server, requests)
    slope = out.slope()
    print(f"requests      {out.done}, {out.left} of them left early, {len(out.wrong)} wrong")
    print(f"retractions   {out.retracted}")
    print(f"pages         {out.pages}")
    print(f"memory        {slope:.0f} bytes a request over the last half (limit {SLOPE_LIMIT:.0f})")
    if not out.retracted:
        out.wrong.append("nobody was retracted: the pool is too large for this load")
    for line in out.wrong[:10]:
        print("WRONG", line)
    return 1 if out.wrong or slope > SLOPE_LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
