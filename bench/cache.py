"""What the caches are worth: hits on shared prefixes beside the possible ones, and the host tier
beside computing again.
"""

import random
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.engine import THREADS, fresh
from bench.rows import Row, write
from tests.e2e import processes

REPEATS = 3
GROUPS, PROMPTS_PER_GROUP = 8, 16
SHARED, OWN = 256, 32  # tokens
CLIENTS = 16
HOST_PROMPT = 1024
HOST_POOL = 2048  # tokens on the device: room for the prompt, not for what comes after it
ENV = {"OMP_NUM_THREADS": str(THREADS)}


def ask(url: str, ids: list[int], new: int) -> dict[str, Any]:
    body = {"input_ids": ids, "sampling_params": {"temperature": 0, "max_new_tokens": new}}
    status, reply, _ = processes.call(f"{url}/generate", body)
    assert status == 200, reply
    return dict(reply["meta_info"])


def grouped_prompts(dice: random.Random) -> list[list[int]]:
    """As `generated-shared-prefix` makes them: each group has a beginning of its own."""
    shared = fresh(GROUPS, SHARED, dice)
    prompts = [
        group + [dice.randrange(100, 48000) for _ in range(OWN)]
        for group in shared
        for _ in range(PROMPTS_PER_GROUP)
    ]
    dice.shuffle(prompts)
    return prompts


def possible_hits(prompts: list[list[int]]) -> int:
    """Tokens that an endless cache would give if prompts came one after the other."""
    tree: dict[int, Any] = {}
    hits = 0
    for prompt in prompts:
        node = tree
        for depth, token in enumerate(prompt):
            # The last token is always computed: its logits are what is asked for.
            hits += token in node and depth < len(prompt) - 1
            node = node.setdefault(token, {})
    return hits


def shared_prefixes() -> list[Row]:
    dice = random.Random(7)
    row = Row("cached tokens beside the possible ones", "share", True, bar="at least 0.96")
    rate = Row("prompt tokens", "tokens/s", True)
    with (
        tempfile.TemporaryDirectory() as scratch,
        processes.front_door(Path(scratch), "--dtype", "float32", env=ENV) as server,
        ThreadPoolExecutor(CLIENTS) as pool,
    ):
        for _ in range(REPEATS):
            prompts = grouped_prompts(dice)
            start = time.perf_counter()
            metas = list(pool.map(lambda ids: ask(server.url, ids, 4), prompts))
            rate.add("ours", sum(map(len, prompts)) / (time.perf_counter() - start))
            row.add("ours", sum(m["cached_tokens"] for m in metas) / possible_hits(prompts))
    return [row, rate]


def host_tier() -> list[Row]:
    dice = random.Random(8)
    row = Row(f"first token of a prompt of {HOST_PROMPT}", "s", False)
    flags = ["--enable-hierarchical-cache", "--max-total-tokens", str(HOST_POOL)]
    with (
        tempfile.TemporaryDirectory() as scratch,
        processes.front_door(
            Path(scratch), "--dtype", "float32", *flags, "--hicache-ratio", "4", env=ENV
        ) as server,
    ):
        for repeat in range(REPEATS + 1):
            for who, seconds in _from_host_and_computed(server.url, dice):
                if repeat:
                    row.add(who, seconds)
    return [row]


def _from_host_and_computed(url: str, dice: random.Random) -> Iterator[tuple[str, float]]:
    prompt, *others = fresh(3, HOST_PROMPT, dice)
    start = time.perf_counter()
    assert ask(url, prompt, 1)["cached_tokens"] == 0
    yield "computed again", time.perf_counter() - start
    for other in others:  # they push the prompt out of the pool
        ask(url, other, 1)
    start = time.perf_counter()
    meta = ask(url, prompt, 1)
    took = time.perf_counter() - start
    assert meta["cached_tokens_details"]["host"] >= HOST_PROMPT // 2, meta
    yield "ours", took


def main() -> None:
    title = f"{GROUPS} groups of {PROMPTS_PER_GROUP} prompts: {SHARED} shared tokens, {OWN} own"
    write("prefix", title, shared_prefixes())
    write("hicache", f"Prefix in host memory, {THREADS} threads", host_tier())


if __name__ == "__main__":
    main()
