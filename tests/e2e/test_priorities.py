"""Priorities over HTTP: who is refused by a full queue, and who gives way."""

import threading
from pathlib import Path

from tests.e2e import processes
from tests.e2e.processes import Server, call, until

FLAGS = (
    "--max-running-requests",
    "1",
    "--max-queued-requests",
    "1",
    "--enable-priority-scheduling",
)
Replies = dict[int, tuple[int, dict]]


def load(server: Server) -> tuple[int, int]:
    one = call(f"{server.url}/v1/loads")[1]["loads"][0]
    return one["num_running_reqs"], one["num_waiting_reqs"]


def ask(server: Server, priority: int, length: int, replies: Replies) -> threading.Thread:
    body = {
        "input_ids": [priority + 100] * 9,
        "priority": priority,
        "sampling_params": {"temperature": 0, "max_new_tokens": length, "ignore_eos": True},
    }

    def run() -> None:
        status, reply, _ = call(f"{server.url}/generate", body)
        replies[priority] = status, reply

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_full_queue_refuses_the_least_urgent_and_the_most_urgent_goes_first(
    tmp_path: Path,
) -> None:
    replies: Replies = {}
    with processes.front_door(tmp_path, *FLAGS) as server:
        threads = [ask(server, 0, 400, replies)]
        until(lambda: load(server) == (1, 0))
        threads.append(ask(server, 1, 4, replies))
        until(lambda: load(server) == (1, 1))
        threads.append(ask(server, 5, 4, replies))
        until(lambda: 1 in replies)
        threads.append(ask(server, 50, 4, replies))
        for thread in threads:
            thread.join()
        assert load(server) == (0, 0)
    assert replies[1][0] == 503
    assert replies[5][0] == 503, "the one with 50 took its place"
    assert [replies[p][0] for p in (0, 50)] == [200, 200]
    assert replies[0][1]["meta_info"]["num_retractions"] == 1
