"""Sessions, pauses and priorities as clients of the HTTP API see them."""

import threading
from typing import Any

import pytest

from tests.e2e import processes
from tests.e2e.conftest import Pool
from tests.e2e.processes import Server

FIRST = list(range(1000, 1040))
SECOND = list(range(2000, 2010))
GREEDY = {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True}


def generate(url: str, ids: list[int], **fields: Any) -> dict[str, Any]:
    body = {"input_ids": ids, "sampling_params": GREEDY, **fields}
    status, answer, _ = processes.call(f"{url}/generate", body)
    assert status == 200, answer
    return answer


def open_session(url: str, **fields: Any) -> str:
    status, session, _ = processes.call(
        f"{url}/open_session", {"capacity_of_str_len": 1000, **fields}
    )
    assert status == 200, session
    return session


@pytest.mark.parametrize("place", ["server", "pool"])
def test_a_turn_continues_what_the_session_holds(
    place: str, request: pytest.FixtureRequest
) -> None:
    """The same tokens without a session have the same answer."""
    url = request.getfixturevalue(place).url
    session = open_session(url)
    first = generate(url, FIRST, session_params={"id": session})
    rid = first["meta_info"]["id"]
    history = FIRST + first["output_ids"]
    second = generate(url, SECOND, session_params={"id": session, "rid": rid})
    assert second["output_ids"] == generate(url, history + SECOND)["output_ids"]
    assert second["meta_info"]["prompt_tokens"] == len(history + SECOND)
    assert second["meta_info"]["cached_tokens"] > 0
    cut = {"id": session, "rid": rid, "offset": 20, "replace": True}
    branch = generate(url, SECOND, session_params=cut)
    assert branch["output_ids"] == generate(url, FIRST[:20] + SECOND)["output_ids"]
    dropped = {"id": session, "rid": rid, "drop_previous_output": True}
    assert (
        generate(url, SECOND, session_params=dropped)["output_ids"]
        == generate(url, FIRST + SECOND)["output_ids"]
    )
    assert processes.call(f"{url}/close_session", {"session_id": session})[0] == 200
    body = {"input_ids": SECOND, "session_params": {"id": session}}
    status, error, _ = processes.call(f"{url}/generate", body)
    assert (status, error["error"]["code"]) == (404, "session_not_found")


def test_sessions_stay_on_their_workers(pool: Pool) -> None:
    sessions = [open_session(pool.url) for _ in range(6)]
    rids = {
        session: generate(pool.url, [*FIRST, 100 + i], session_params={"id": session})
        for i, session in enumerate(sessions)
    }
    for session, first in rids.items():
        for _ in range(3):
            ref = {"id": session, "rid": first["meta_info"]["id"]}
            assert generate(pool.url, SECOND, session_params=ref)["meta_info"]["cached_tokens"] > 0


def test_what_is_wrong_with_a_session_is_told(server: Server) -> None:
    session = open_session(server.url, session_id="talk")
    assert session == "talk"
    for path, body, status, words in [
        ("/open_session", {"capacity_of_str_len": 1, "session_id": "talk"}, 400, "open already"),
        ("/open_session", {"capacity_of_str_len": "much"}, 400, "capacity_of_str_len"),
        ("/open_session", {"capacity_of_str_len": 1, "streaming": True}, 400, "streaming"),
        ("/close_session", {"session_id": "other"}, 404, "not open here"),
        ("/generate", {"input_ids": [1], "session_params": {"id": "talk", "rid": "x"}}, 400, "'x'"),
        ("/generate", {"input_ids": [1], "session_id": "other"}, 404, "/open_session"),
    ]:
        got, error, _ = processes.call(f"{server.url}{path}", body)
        assert got == status and words in error["error"]["message"], (path, body, error)
    assert processes.call(f"{server.url}/close_session", {"session_id": "talk"})[0] == 200


def test_a_session_that_timed_out_is_not_found_and_its_name_is_free(server: Server) -> None:
    open_session(server.url, session_id="short", timeout=0.001)
    body = {"input_ids": [1], "sampling_params": GREEDY, "session_params": {"id": "short"}}
    answers: list[Any] = []

    def is_over() -> bool:
        answers.append(processes.call(f"{server.url}/generate", body))
        return bool(answers[-1][0] != 200)

    processes.until(is_over)
    for words in ("timeout passed", "not open here"):
        status, error, _ = answers[-1]
        told = error["error"]
        assert (status, told["code"]) == (404, "session_not_found")
        assert told["param"] == "session_params.id" and words in told["message"]
        is_over()
    open_session(server.url, session_id="short")
    assert processes.call(f"{server.url}/close_session", {"session_id": "short"})[0] == 200


def test_a_pause_holds_what_comes_until_it_is_over(server: Server) -> None:
    status, said, _ = processes.call(f"{server.url}/pause_generation", {"mode": "in_place"})
    assert (status, said) == (
        200, {"message": "Generation paused successfully.", "status": "ok"},
    )  # fmt: skip
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(generate(server.url, FIRST)))
    asking.start()
    try:
        processes.until(
            lambda: processes.call(f"{server.url}/get_load")[1][0]["num_reqs"] == 1 or answers
        )
        assert answers == []
    finally:
        status, said, _ = processes.call(f"{server.url}/continue_generation", {})
        asking.join(processes.STOP_GUARD)
    assert (status, said) == (
        200, {"message": "Generation continued successfully.", "status": "ok"},
    )  # fmt: skip
    assert len(answers[0]["output_ids"]) == 6


def test_a_pause_ends_what_runs(server: Server) -> None:
    answers: list[Any] = []
    long = {"max_new_tokens": 1000, "ignore_eos": True}
    asking = threading.Thread(
        target=lambda: answers.append(generate(server.url, FIRST, sampling_params=long))
    )
    asking.start()
    try:
        processes.until(
            lambda: processes.call(f"{server.url}/get_load")[1][0]["num_reqs"] == 1 or answers
        )
        assert processes.call(f"{server.url}/pause_generation", {})[0] == 200
        asking.join(processes.STOP_GUARD)
    finally:
        processes.call(f"{server.url}/continue_generation", {})
    assert answers[0]["meta_info"]["finish_reason"]["type"] == "abort"


def test_fields_that_place_a_request_are_taken(server: Server) -> None:
    for field in ({"priority": 3}, {"routing_key": "tenant"}):
        assert len(generate(server.url, FIRST, **field)["output_ids"]) == 6
    body = {"input_ids": FIRST, "custom_logit_processor": "no such one"}
    status, error, _ = processes.call(f"{server.url}/generate", body)
    assert status == 400 and error["error"]["param"] == "custom_logit_processor"


def test_the_storage_routes_are_closed(server: Server) -> None:
    for method in ("GET", "PUT", "DELETE"):
        status, error, _ = processes.call(f"{server.url}/hicache/storage-backend", {}, method)
        assert (status, error["error"]["code"]) == (403, "admin_key_required")
