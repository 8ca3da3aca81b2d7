"""Which stages a request went through."""

import pytest

from sglang.srt.core.messages import RequestTimes
from sglang.srt.observability.stages import Stage, stages_of

WHOLE = {"compiled": 2.0, "admissions": [3.0, 8.0], "prefilled": 5.0, "retractions": [6.0]}


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({}, [("queue", 1, 9)]),
        ({"compiled": 2.0}, [("grammar", 1, 2), ("queue", 2, 9)]),
        ({"admissions": [3.0]}, [("queue", 1, 3), ("prefill", 3, 9)]),
        (WHOLE, [("grammar", 1, 2), ("queue", 2, 3), ("prefill", 3, 5), ("decode", 5, 9)]),
    ],
)
def test_stages_follow_each_other(times: dict, expected: list[tuple]) -> None:  # type: ignore[type-arg]
    found = stages_of(RequestTimes(received=1.0, finished=9.0, **times))
    assert found == [Stage(*each) for each in expected]
