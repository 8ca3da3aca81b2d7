"""How long after a client's close its request is gone from the scheduler (bar: 100 ms)."""

import tempfile
import time
from pathlib import Path

from bench.rows import Row, write
from tests.e2e import processes
from tests.e2e.processes import Server, call
from tests.e2e.test_faults import LONG, post_and_keep

REPEATS = 10


def running(server: Server) -> int:
    return int(call(f"{server.url}/v1/loads")[1]["loads"][0]["num_running_reqs"])


def once(server: Server, stream: bool) -> float:
    """Milliseconds from close to idle, as seen by polling."""
    leaver = post_and_keep(server, {"text": "go", "sampling_params": LONG, "stream": stream})
    while running(server) == 0:
        pass
    start = time.perf_counter()
    leaver.close()
    while running(server):
        pass
    return 1000 * (time.perf_counter() - start)


def main() -> None:
    rows = []
    with (
        tempfile.TemporaryDirectory() as scratch,
        processes.front_door(Path(scratch)) as server,
    ):
        for stream in (True, False):
            name = "streamed" if stream else "whole"
            row = Row(f"cancel in decode, {name}", "ms", False, bar="at most 100 ms")
            for _ in range(REPEATS):
                row.add("ours", once(server, stream))
            rows.append(row)
    write("cancel", "From a client's close to a free scheduler", rows)


if __name__ == "__main__":
    main()
