"""Requests leave when they are due, and tokens are noted when they come."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import httpx
import numpy as np
import pytest

from sglang.benchmark.backends import BACKENDS, Ask, News, Sampling
from sglang.benchmark.client import Outcome, Sender, arrival_times, run_all
from sglang.benchmark.errors import RequestFailed
from tests.unit.benchmark.clock import FakeTime

INF = float("inf")


def asks(count: int, *times: float) -> list[Ask]:
    return [Ask("p", 1, at) for at in times or [None] * count]


def test_times_of_a_rate_are_poisson_and_the_seed_s() -> None:
    times = arrival_times(asks(4000), 5.0, seed=1)
    gaps = np.diff(times)
    assert times[0] == 0 and (gaps >= 0).all()
    assert np.mean(gaps) == pytest.approx(0.2, rel=0.05)
    assert np.std(gaps) == pytest.approx(0.2, rel=0.1)  # an exponential spreads as far as its mean
    assert arrival_times(asks(4000), 5.0, seed=1) == times
    assert arrival_times(asks(4000), 5.0, seed=2) != times


def test_times_of_a_trace_and_of_no_rate() -> None:
    assert arrival_times(asks(3, 0.0, 1.5, 9.0), INF, seed=1) == [0.0, 1.5, 9.0]
    assert arrival_times(asks(3), INF, seed=1) == [0.0, 0.0, 0.0]


async def test_an_open_loop_does_not_wait_for_answers() -> None:
    time = FakeTime()
    started: list[float] = []
    all_started = asyncio.Event()

    async def send(ask: Ask) -> Outcome:
        started.append(time.seconds)
        if len(started) == 3:
            all_started.set()
        await all_started.wait()
        return Outcome(output_len=len(started))

    outcomes, duration = await run_all(asks(3), [0.0, 2.0, 5.0], send, time.clock)
    assert started == [0.0, 2.0, 5.0]
    assert len(outcomes) == 3 and duration == 5.0


def slow_sends(time: FakeTime) -> tuple[list[int], Callable[[Ask], Awaitable[Outcome]]]:
    """How many requests were under way whenever one was sent; each takes many turns."""
    inside, seen = 0, []

    async def send(ask: Ask) -> Outcome:
        nonlocal inside
        inside += 1
        seen.append(inside)
        for _ in range(30):
            await asyncio.sleep(0)
        inside -= 1
        return Outcome()

    return seen, send


@pytest.mark.parametrize(("limit", "most"), [(None, 9), (4, 4), (1, 1)])
async def test_concurrency_is_limited(limit: int | None, most: int) -> None:
    time = FakeTime()
    seen, send = slow_sends(time)
    outcomes, _ = await run_all(asks(9), [0.0] * 9, send, time.clock, limit)
    assert len(outcomes) == 9 and max(seen) == most


def test_times_of_tokens_that_come_one_by_one_and_together() -> None:
    outcome = Outcome(started=10.0)
    for now, count in ((10.5, 1), (10.7, 2), (11.3, 5)):
        outcome.take(News(whole_text="a" * count, has_token=True, completion_tokens=count), now)
    outcome.latency = 1.3
    assert outcome.ttft == pytest.approx(0.5)
    assert outcome.itls == pytest.approx([0.2, 0.2, 0.2, 0.2])
    assert outcome.tpot == pytest.approx(0.2)
    assert (outcome.text, outcome.output_len) == ("aaaaa", 5)


def test_events_without_text_are_no_tokens_and_usage_counts() -> None:
    outcome = Outcome(started=0.0)
    outcome.take(News(), 1.0)  # the role of a chat
    outcome.take(News(text="a", has_token=True), 2.0)
    outcome.take(News(text="bc", has_token=True), 3.0)
    outcome.take(News(prompt_tokens=7, completion_tokens=4, cached_tokens=3), 9.0)
    assert outcome.ttft == 2.0 and outcome.itls == [1.0]
    assert (outcome.text, outcome.input_len, outcome.output_len) == ("abc", 7, 4)
    assert outcome.cached_len == 3


def test_an_answer_of_one_token_has_no_time_per_further_token() -> None:
    outcome = Outcome(latency=1.0)
    outcome.take(News(has_token=True, completion_tokens=1), 1.0)
    assert outcome.tpot is None


def test_an_error_in_the_answer_fails_the_request() -> None:
    with pytest.raises(RequestFailed, match="worker died"):
        Outcome().take(News(error="worker died"), 0.0)


async def test_requests_that_are_given_up_have_ended_before_anything_else() -> None:
    steps: list[str] = []
    waiting = asyncio.Event()

    async def send(ask: Ask) -> Outcome:
        if ask.prompt == "breaks":
            await waiting.wait()
            raise RuntimeError("broken")
        try:
            waiting.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            steps.append("tidied up")
        return Outcome()

    both = [Ask("waits", 1), Ask("breaks", 1)]
    with pytest.raises(RuntimeError, match="broken"):
        await run_all(both, [0.0, 0.0], send, FakeTime().clock)
    assert steps == ["tidied up"]


async def sent(backend: str, answer: object, stream: bool) -> Outcome:
    """What becomes of a request that is answered so."""
    text = f"data: {json.dumps(answer)}\n\n" if stream else json.dumps(answer)
    transport = httpx.MockTransport(lambda request: httpx.Response(200, text=text))
    async with httpx.AsyncClient(base_url="http://server", transport=transport) as client:
        sampling = Sampling("m", stream=stream)
        return await Sender(client, BACKENDS[backend], sampling, {}, FakeTime().clock).send(
            Ask("p", 1)
        )


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("backend", ["sglang", "vllm", "sglang-oai-chat"])
@pytest.mark.parametrize("answer", [None, [], [{"text": "one"}, {"text": "two"}], 5, "text", True])
async def test_answers_that_are_no_objects_fail_their_request(
    backend: str, answer: object, stream: bool
) -> None:
    failure = (await sent(backend, answer, stream)).failure
    assert failure is not None and failure.kind == "answer is no object"
    assert f"got {json.dumps(answer)}; each request asks for one answer" in failure.message


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("backend", "answer"),
    [
        ("sglang", {"text": 5}),
        ("sglang", {"text": "a", "meta_info": {"completion_tokens": "3"}}),
        ("vllm", {"choices": [None]}),
        ("vllm-chat", {"choices": [{"delta": {"content": 5}}]}),
    ],
)
async def test_answers_that_are_not_as_the_api_says_fail_their_request(
    backend: str, answer: object, stream: bool
) -> None:
    failure = (await sent(backend, answer, stream)).failure
    assert failure is not None and failure.kind == "answer is not understood"
    assert json.dumps(answer) in failure.message
