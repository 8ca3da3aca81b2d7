"""The line that is logged for an answer."""

import json
import logging

import pytest

from sglang.srt.core.messages import FinishReason, GenerateInput, RequestOutput, RequestTimes
from sglang.srt.core.sampling_params import SamplingParams
from sglang.srt.observability.answer_watch import Watches
from sglang.srt.observability.request_log import RequestLog


def logged(
    caplog: pytest.LogCaptureFixture, level: int, *, as_json: bool = True, is_gone: bool = False
) -> str:
    log = RequestLog(level, as_json=as_json)
    now = iter((10.0, 12.5))
    wish = GenerateInput(
        rid="r", input_ids=list(range(100)), sampling=SamplingParams(temperature=0.5)
    )
    watch = Watches(None, [log], clock=lambda: next(now)).begin([wish], {})["r"]
    so_far = RequestTimes(received=10.0, admissions=[11.0], prefilled=12.0)
    watch.progressed(
        RequestOutput(rid="r", token_ids=[5], completion_tokens=1, cached_tokens=7, times=so_far)
    )
    if not is_gone:
        times = RequestTimes(received=10.0, admissions=[11.0], prefilled=12.0, finished=12.5)
        watch.progressed(
            RequestOutput(rid="r", token_ids=[6, 7], completion_tokens=3, cached_tokens=7,
                          finish=FinishReason(type="stop"), times=times)
        )  # fmt: skip
    with caplog.at_level(logging.INFO, "sglang.srt.observability.request_log"):
        watch.close()
    (record,) = caplog.records
    return record.getMessage()


def test_level_0_holds_counts_and_times(caplog: pytest.LogCaptureFixture) -> None:
    assert json.loads(logged(caplog, 0)) == {
        "rid": "r", "finish": "stop", "prompt_tokens": 100, "cached_tokens": 7,
        "completion_tokens": 3, "num_retractions": 0, "seconds": 2.5,
        "stages": {"queue": 1.0, "prefill": 1.0, "decode": 0.5},
    }  # fmt: skip


def test_each_level_adds_more(caplog: pytest.LogCaptureFixture) -> None:
    facts = [json.loads(logged(caplog, level)) for level in [1] if not caplog.clear()]
    assert facts[0]["sampling"]["temperature"] == 0.5 and "input_ids" not in facts[0]
    caplog.clear()
    second = json.loads(logged(caplog, 2))
    assert second["input_ids"] == list(range(64)) and second["output_ids"] == [5, 6, 7]
    caplog.clear()
    assert json.loads(logged(caplog, 3))["input_ids"] == list(range(100))


def test_text_is_words_with_values(caplog: pytest.LogCaptureFixture) -> None:
    line = logged(caplog, 0, as_json=False)
    assert line.startswith("rid=r finish=stop prompt_tokens=100 cached_tokens=7 ")


def test_a_caller_that_is_gone_is_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    facts = json.loads(logged(caplog, 0, is_gone=True))
    assert (facts["finish"], facts["completion_tokens"]) == ("cancelled", 1)
    assert "stages" not in facts and "gone" in facts["error"]
