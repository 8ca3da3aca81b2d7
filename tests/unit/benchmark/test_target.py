"""The wait for the server, and what it tells aside from the measured requests."""

import asyncio
from collections.abc import Awaitable, Callable

import httpx
import pytest

from sglang.benchmark import target
from sglang.benchmark.client import Clock
from sglang.benchmark.errors import BenchmarkError
from sglang.benchmark.options import Options
from sglang.benchmark.tokens import ServerTokens
from tests.unit.benchmark.clock import FakeTime

Answer = Callable[[httpx.Request], Awaitable[httpx.Response]]
READY = httpx.Response(200, json={"data": [{"id": "words"}]})


async def wait(answer: Answer, clock: Clock, seconds: float = 60.0) -> str:
    options = Options(base_url="http://server", ready_check_timeout_sec=seconds)
    transport = httpx.MockTransport(answer)
    async with httpx.AsyncClient(base_url=options.url, transport=transport) as client:
        return await target.wait_ready(client, options, clock)


async def silent(request: httpx.Request) -> httpx.Response:
    await asyncio.Event().wait()
    raise AssertionError("nobody sets the event")


async def test_a_silent_server_is_waited_for_no_longer_than_asked_for() -> None:
    clock = Clock()
    start = clock.now()
    with pytest.raises(BenchmarkError, match="not ready after 0.2 s: .*not answer within 0.2 s"):
        await asyncio.wait_for(wait(silent, clock, 0.2), 30)
    assert clock.now() - start < target.PROBE_SECONDS


async def test_a_question_without_an_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "PROBE_SECONDS", 0.05)
    asked: list[httpx.Request] = []

    async def second_time(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return READY if len(asked) == 2 else await silent(request)

    assert await asyncio.wait_for(wait(second_time, FakeTime().clock), 30) == "words"


@pytest.mark.parametrize("seconds", [0.0, 0.25, 60.0])
async def test_what_is_left_of_the_time_bounds_each_question(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    time, bounds, real = FakeTime(), [], asyncio.wait_for

    async def noted(waited: Awaitable[httpx.Response], timeout: float) -> httpx.Response:
        bounds.append((time.seconds, timeout))
        return await real(waited, None)

    async def loading(request: httpx.Request) -> httpx.Response:
        return httpx.Response(503)

    monkeypatch.setattr(asyncio, "wait_for", noted)
    with pytest.raises(BenchmarkError, match=f"not ready after {seconds:g} s: .*answers 503"):
        await wait(loading, time.clock, seconds)
    assert time.seconds == seconds
    if not seconds:
        assert bounds == [(0.0, 5.0)]  # asked once
    else:
        assert all(bound == min(5.0, seconds - now) for now, bound in bounds)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_server_that_wants_a_key_ends_the_wait_at_once(status: int) -> None:
    time = FakeTime()

    async def refusing(request: httpx.Request) -> httpx.Response:
        return httpx.Response(status)

    with pytest.raises(BenchmarkError, match=f"refuses /v1/models with {status}; .*--header"):
        await wait(refusing, time.clock)
    assert time.seconds == 0


@pytest.mark.parametrize(
    "body", [None, [], {}, {"data": None}, {"data": {}}, {"data": [{}]}, {"data": [None]}, "words"]
)
async def test_a_list_of_models_that_cannot_be_read_is_not_ready(body: object) -> None:
    async def odd(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=body)

    with pytest.raises(BenchmarkError, match="answers 200 without a model"):
        await wait(odd, FakeTime().clock)


@pytest.mark.parametrize("body", [None, [1], {}, {"tokens": None}, {"tokens": 5}])
async def test_a_server_that_cannot_tokenize_is_named(body: object) -> None:
    def odd(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=body)

    async with httpx.AsyncClient(
        base_url="http://server", transport=httpx.MockTransport(odd)
    ) as client:
        with pytest.raises(BenchmarkError, match="server's /tokenize .*give --tokenizer FOLDER"):
            await ServerTokens(client, "m").encode(["text"])
