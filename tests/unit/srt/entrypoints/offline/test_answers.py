"""The scheduler's news as answers of `/generate`: text, stops, logprobs, events."""

import dataclasses
import time
from typing import Any

import pytest

from sglang.srt.core.messages import (
    FinishReason,
    LogprobRows,
    RequestOutput,
    RequestTimes,
    TopRow,
)
from sglang.srt.entrypoints.offline.answers import IMPOSSIBLE_LOGPROB, NativeAnswer, finite_logprob
from sglang.srt.entrypoints.offline.requests import generate_request
from tests.unit.srt.entrypoints.offline.models import EOS, ids_of, served


def answer_to(prompt: str, params: dict[str, Any] | None = None, **options: Any) -> NativeAnswer:
    request = generate_request(
        served(),
        {"prompt": prompt, "input_ids": None},
        params,
        {"rid": "r", **options},  # type: ignore[typeddict-item]
    )
    return NativeAnswer(request.prompts[0], 0, served())


def news(ids: list[int], total: int, finish: str | None = None, **more: Any) -> RequestOutput:
    reason = FinishReason(type=finish, **more.pop("reason", {})) if finish else None
    return RequestOutput(
        rid="r", token_ids=ids, prompt_tokens=2, completion_tokens=total, cached_tokens=1,
        finish=reason, **more,
    )  # fmt: skip


def finished(text: str, finish: str = "length", params: Any = None, **reason: Any) -> Any:
    """The reply after a whole answer; `EOS` cannot be written and is `$`."""
    answer = answer_to("ab", params)
    ids = [EOS if letter == "$" else ids_of(letter)[0] for letter in text]
    answer.take(news(ids, len(ids), finish, reason=reason))
    return answer.body()


def test_whole_answer_has_the_native_keys() -> None:
    reply = finished("hey")
    assert (reply["text"], reply["output_ids"]) == ("hey", ids_of("hey"))
    meta = reply["meta_info"]
    assert meta.pop("e2e_latency") >= 0
    assert meta == {
        "id": "r",
        "finish_reason": {"type": "length", "length": 3},
        "prompt_tokens": 2,
        "completion_tokens": 3,
        "cached_tokens": 1,
        "weight_version": "v1",
        "num_retractions": 0,
        "reasoning_tokens": 0,
        "dp_rank": None,
    }


def test_tiers_of_the_cache_are_told() -> None:
    answer = answer_to("ab")
    origin = {"device": 0, "host": 1, "storage": 0}
    answer.take(news(ids_of("x"), 1, cached_tokens_details=origin))
    assert answer.event(None)["meta_info"]["cached_tokens_details"] == origin


def test_times_are_told_where_they_are_measured() -> None:
    measuring = dataclasses.replace(served(), tells_times=True)
    request = generate_request(measuring, {"prompt": "ab", "input_ids": None}, None, {})
    answer, now = NativeAnswer(request.prompts[0], 0, measuring), time.monotonic()
    times = RequestTimes(
        received=now, compiled=now + 1, admissions=[now + 3, now + 9], prefilled=now + 4,
        finished=now + 6,
    )  # fmt: skip
    answer.take(news(ids_of("abc"), 3, "length", times=times))
    meta = answer.body()["meta_info"]
    assert (meta["queue_time"], meta["decode_throughput"]) == pytest.approx((2, 1))
    assert meta["first_token_latency"] == pytest.approx(4, abs=0.1)
    assert meta["prefill_finished_time"] - meta["forward_entry_time"] == pytest.approx(1, abs=1e-3)
    assert meta["request_received_ts"] <= meta["response_sent_to_client_ts"] <= time.time()
    answer = NativeAnswer(request.prompts[0], 0, measuring)
    answer.take(news([], 0, "length", times=RequestTimes(received=now, finished=now + 1)))
    assert "queue_time" not in answer.body()["meta_info"]  # it never left the queue


def test_token_that_ends_the_answer_is_no_text() -> None:
    reply = finished("hey$", "stop", matched=EOS)
    assert reply["text"] == "hey"
    assert reply["output_ids"][-1] == EOS
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": EOS}
    (x,) = ids_of("x")
    assert finished("heyx", "stop", {"stop_token_ids": [x]}, matched=x)["text"] == "hey"


def test_no_stop_trim_and_ignore_eos_keep_such_tokens() -> None:
    params = {"stop_token_ids": ids_of("x"), "no_stop_trim": True}
    assert finished("heyx", "stop", params, matched=ids_of("x")[0])["text"] == "heyx"
    spoken = {"ignore_eos": True, "skip_special_tokens": False}
    assert finished("he$y", "length", spoken)["text"] == "he</s>y"


def test_stop_string_is_cut_off_and_named() -> None:
    reply = finished("hello wo", "stop", {"stop": " wo"}, matched=" wo")
    assert reply["text"] == "hello"
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": " wo"}
    assert finished("a-", "stop", {"stop": "-", "no_stop_trim": True}, matched="-")["text"] == "a-"


def test_stop_that_only_the_end_decides_is_found() -> None:
    reply = finished("abc", "length", {"stop_regex": "c$"})
    assert reply["text"] == "ab"
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": "c$"}


def test_beginning_of_a_stop_string_is_text_after_all() -> None:
    assert finished("hello w", "length", {"stop": " wo"})["text"] == "hello w"


def test_stop_is_not_looked_for_in_the_first_tokens() -> None:
    params = {"stop": "b", "min_new_tokens": 3, "max_new_tokens": 5}
    reply = finished("abcab", "stop", params, matched="b")
    assert reply["text"] == "abca"


def test_abort_tells_its_reason() -> None:
    reply = finished("he", "abort", message="Aborted by the caller")
    assert reply["text"] == "he"
    assert reply["meta_info"]["finish_reason"] == {
        "type": "abort", "message": "Aborted by the caller", "status_code": None, "err_type": None,
    }  # fmt: skip


def test_events_are_the_whole_answer_so_far() -> None:
    answer = answer_to("ab")
    answer.take(news(ids_of("h"), 1))
    first = answer.event(None)
    answer.take(news(ids_of("ey"), 3, "length"))
    last = answer.event(1)
    assert (first["text"], first["output_ids"]) == ("h", ids_of("h"))
    assert first["meta_info"]["finish_reason"] is None
    assert "index" not in first and "e2e_latency" not in first["meta_info"]
    assert (last["text"], last["output_ids"], last["index"]) == ("hey", ids_of("hey"), 1)
    assert last["meta_info"]["finish_reason"] == {"type": "length", "length": 3}


def rows(letters: str, *logprobs: float | None, **more: Any) -> LogprobRows:
    return LogprobRows(logprobs=list(logprobs), token_ids=ids_of(letters), **more)


def test_logprobs_are_triples_and_the_prompts_come_once_and_at_the_end() -> None:
    answer = answer_to("ab", return_logprob=True, logprob_start_len=0)
    answer.take(
        news(ids_of("h"), 1, output_logprobs=rows("h", -1.0),
             input_logprobs=rows("ab", None, -0.5))
    )  # fmt: skip
    first = answer.event(None)["meta_info"]
    answer.take(news(ids_of("e"), 2, output_logprobs=rows("e", -2.0)))
    second = answer.event(None)["meta_info"]
    answer.take(news([], 2, "length"))
    last = answer.event(None)["meta_info"]
    a, b = ids_of("ab")
    h, e = ids_of("he")
    assert first["input_token_logprobs"] == [[None, a, None], [-0.5, b, None]]
    assert first["output_token_logprobs"] == [[-1.0, h, None]]
    assert second["input_token_logprobs"] == []
    assert second["output_token_logprobs"] == [[-1.0, h, None], [-2.0, e, None]]
    assert second["output_token_logprobs_length"] == 2
    assert last["input_token_logprobs"] == first["input_token_logprobs"]
    assert "output_top_logprobs" not in last


def test_alternatives_and_texts_where_they_are_asked_for() -> None:
    answer = answer_to(
        "ab", return_logprob=True, top_logprobs_num=1, token_ids_logprob=ids_of("x"),
        logprob_start_len=0, return_text_in_logprobs=True,
    )  # fmt: skip
    h, x = ids_of("hx")
    row = TopRow([-0.5], [x])
    answer.take(
        news([h], 1, "length",
             output_logprobs=rows("h", -1.0, top=[row], chosen=[row]),
             input_logprobs=rows("a", None, top=[None], chosen=[None]))
    )  # fmt: skip
    meta = answer.body()["meta_info"]
    assert meta["output_token_logprobs"] == [[-1.0, h, "h"]]
    assert meta["output_top_logprobs"] == [[[-0.5, x, "x"]]]
    assert meta["output_token_ids_logprobs"] == [[[-0.5, x, "x"]]]
    assert meta["input_top_logprobs"] == [None]
    assert meta["input_token_ids_logprobs"] == [None]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (-0.5, -0.5),
        (1e-9, 0.0),
        (float("-inf"), IMPOSSIBLE_LOGPROB),
        (float("nan"), IMPOSSIBLE_LOGPROB),
    ],
)
def test_logprobs_are_numbers_that_json_has(given: float, told: float) -> None:
    assert finite_logprob(given) == told
