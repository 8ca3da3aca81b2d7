"""What scheduling costs: its own time per step, and what overlapping it with the model brings."""

import random
import tempfile
import time
from pathlib import Path

from bench.engine import DECODE_TOKENS, PROMPT, THREADS, Ours, fresh
from bench.rows import Row, write
from sglang.srt.core.batch import GenerationBatchResult, ScheduleBatch
from tests.e2e import processes
from tests.unit.srt.managers.engine import VOCAB, Engine, generate

REPEATS = 5
STEPS = 1000  # more than it takes until all run
MEASURED = 100
RUNNING = (1, 32, 256)
BATCHES = (1, 8, 32)
LOOPS = {"overlap": (), "one after the other": ("--disable-overlap-schedule",)}


class Instant:
    """A model that takes no time."""

    def forward_batch_generation(self, batch: ScheduleBatch) -> GenerationBatchResult:
        nothing = [None] * batch.batch_size
        return GenerationBatchResult([1] * batch.batch_size, [*nothing], [*nothing])


def step_microseconds(num_running: int) -> float:
    """Of one decode step of so many streamed requests, without the model and the sockets."""
    length = PROMPT + STEPS + 2
    engine = Engine(pool=num_running * length, context=length, max_running_requests=num_running)
    scheduler = engine.scheduler
    scheduler.worker = Instant()
    # Keeps nothing, like the socket: what is kept would make the garbage collector's work longer.
    engine.outbox.send = lambda output: None  # type: ignore[method-assign]
    for i in range(num_running):
        prompt = [(i + k) % (VOCAB - 1) for k in range(PROMPT)]
        engine.send(generate(f"{i}", prompt, STEPS + 1, extra_key=f"{i}"))
    while len(scheduler.running.reqs) < num_running:
        batch = scheduler.get_next_batch_to_run()
        assert batch is not None
        scheduler.process_batch_result(batch, scheduler.run_batch(batch))
    start = time.perf_counter()
    for _ in range(MEASURED):
        batch = scheduler.get_next_batch_to_run()
        assert batch is not None and batch.batch_size == num_running
        scheduler.process_batch_result(batch, scheduler.run_batch(batch))
    return 1e6 * (time.perf_counter() - start) / MEASURED


def own_time() -> list[Row]:
    rows = []
    for num_running in RUNNING:
        row = Row(f"scheduler's own time per step, {num_running} requests", "µs", False)
        for repeat in range(REPEATS + 1):
            took = step_microseconds(num_running)
            if repeat:
                row.add("ours", took)
        rows.append(row)
    return rows


def loops() -> list[Row]:
    """Both loops side by side in servers of their own; repeats alternate."""
    dice = random.Random(5)
    rows = [Row(f"decode, batch {batch}", "tokens/s", True) for batch in BATCHES]
    with tempfile.TemporaryDirectory() as scratch:
        for repeat in range(REPEATS + 1):
            for who, flags in LOOPS.items():
                folder = Path(scratch) / f"{repeat}-{len(flags)}"
                folder.mkdir()
                env = {"OMP_NUM_THREADS": str(THREADS)}
                with processes.front_door(folder, "--dtype", "float32", *flags, env=env) as server:
                    side = Ours(server)
                    for row, batch in zip(rows, BATCHES, strict=True):
                        side.seconds(fresh(batch, PROMPT, dice), 2)
                        short = side.seconds(fresh(batch, PROMPT, dice), 1)
                        long = side.seconds(fresh(batch, PROMPT, dice), 1 + DECODE_TOKENS)
                        if repeat:
                            row.add(who, batch * DECODE_TOKENS / (long - short))
    return rows


def main() -> None:
    write("scheduling", "The scheduler's own time, with a model that takes none", own_time())
    write("overlap", f"Overlapped steps, SmolLM2-135M-Instruct, {THREADS} threads", loops())


if __name__ == "__main__":
    main()
