"""Sends the requests when they are due and notes when their tokens come."""

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
import numpy as np

from sglang.benchmark.backends import Ask, Backend, Json, News, Sampling
from sglang.benchmark.errors import RequestFailed

T = TypeVar("T")


@dataclass(frozen=True)
class Clock:
    now: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


@dataclass
class Outcome:
    """What became of one request. Times in seconds; `started` and `token_times` by the clock."""

    started: float = 0.0
    latency: float = 0.0
    ttft: float | None = None  # None: no token was seen to come
    itls: list[float] = field(default_factory=list)
    token_times: list[tuple[float, int]] = field(default_factory=list)  # when, how many
    text: str = ""
    input_len: int = 0
    output_len: int = 0
    cached_len: int = 0
    failure: RequestFailed | None = None
    adapter: str | None = None

    @property
    def tpot(self) -> float | None:
        """Mean time of a token after the first."""
        if self.ttft is None or self.output_len < 2:
            return None
        return (self.latency - self.ttft) / (self.output_len - 1)

    def take(self, news: News, now: float) -> None:
        """Adds what an event says. Raises RequestFailed if it tells of an error."""
        if news.error is not None:
            raise RequestFailed("error in the answer", news.error)
        self.text = news.whole_text if news.whole_text is not None else self.text + news.text
        self.input_len = news.prompt_tokens or self.input_len
        self.cached_len = news.cached_tokens or self.cached_len
        if news.has_token:
            counted = news.completion_tokens
            new = 1 if counted is None else counted - self.output_len
            if new > 0:
                self._note_tokens(new, now)
                self.output_len += new
        if news.completion_tokens is not None:
            self.output_len = news.completion_tokens

    def _note_tokens(self, new: int, now: float) -> None:
        if self.ttft is None:
            self.ttft = now - self.started
        else:
            # Tokens that come together share the time that they took.
            gap = now - self.token_times[-1][0]
            self.itls += [gap / new] * new
        self.token_times.append((now, new))


class Sender:
    """One backend of one server."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        backend: Backend,
        sampling: Sampling,
        extra_body: Json,
        clock: Clock,
    ) -> None:
        self._client = client
        self._backend = backend
        self._sampling = sampling
        self._extra_body = extra_body
        self._clock = clock

    async def send(self, ask: Ask) -> Outcome:
        """Asks and reads the whole answer. What goes wrong is in the outcome."""
        outcome = Outcome(started=self._clock.now(), adapter=ask.adapter)
        body = {**self._backend.request(ask, self._sampling), **self._extra_body}
        try:
            if body.get("stream"):
                await self._stream(body, outcome)
            else:
                await self._whole(body, outcome)
        except RequestFailed as failure:
            outcome.failure = failure
        except httpx.TimeoutException as error:
            outcome.failure = RequestFailed("timeout", repr(error))
        except httpx.HTTPError as error:
            outcome.failure = RequestFailed(f"connection ({type(error).__name__})", str(error))
        except ValueError as error:
            outcome.failure = RequestFailed("answer is not JSON", str(error))
        outcome.latency = self._clock.now() - outcome.started
        return outcome

    async def converse(self, ask: Ask) -> list[Outcome]:
        """Every turn, each as soon as the one before is answered. After one that failed the
        others are not sent, and count as failed."""
        outcomes = [await self.send(ask)]
        while ask.follow_ups and outcomes[-1].failure is None:
            ask = ask.next_turn(outcomes[-1].text, self._backend.is_chat)
            outcomes.append(await self.send(ask))
        unsent = RequestFailed("not sent", "a turn before it failed")
        left = ask.follow_ups
        return outcomes + [Outcome(failure=unsent, adapter=ask.adapter) for _ in left]

    async def _stream(self, body: Json, outcome: Outcome) -> None:
        async with self._client.stream("POST", self._backend.path, json=body) as response:
            await _check(response)
            async for line in response.aiter_lines():
                if not line.startswith("data:"):
                    continue
                data = line[len("data:") :].strip()
                if data == "[DONE]":
                    return
                outcome.take(self._news(json.loads(data)), self._clock.now())
        raise RequestFailed("stream was cut", "the answer ended without [DONE]")

    async def _whole(self, body: Json, outcome: Outcome) -> None:
        response = await self._client.post(self._backend.path, json=body)
        await _check(response)
        outcome.take(self._news(response.json()), self._clock.now())
        # A whole answer says nothing about its tokens' times.
        outcome.ttft, outcome.token_times = None, []

    def _news(self, told: Any) -> News:
        if not isinstance(told, dict):
            raise RequestFailed(
                "answer is no object",
                f"an object was expected, got {_shown(told)}; each request asks for one answer, so "
                "n in --extra-request-body must be 1",
            )
        try:
            return self._backend.read(told)
        except (AttributeError, LookupError, TypeError) as error:
            raise RequestFailed(
                "answer is not understood", f"{error}, in {_shown(told)}"
            ) from error


async def run_all(
    asks: Sequence[Ask],
    arrivals: Sequence[float],
    send: Callable[[Ask], Awaitable[T]],
    clock: Clock,
    max_concurrency: int | None = None,
) -> tuple[list[T], float]:
    """Sends each request at its time, whether or not earlier ones are answered; -> what became of
    them, in their order, and the seconds from the first to the last.

    With a limit, what is due waits until one before it has ended; its latency starts then.
    """
    gate = asyncio.Semaphore(max_concurrency) if max_concurrency else contextlib.nullcontext()

    async def one(ask: Ask) -> T:
        async with gate:
            return await send(ask)

    start = clock.now()
    running: list[asyncio.Task[T]] = []
    try:
        for ask, at in zip(asks, arrivals, strict=True):
            await clock.sleep(max(start + at - clock.now(), 0.0))
            running.append(asyncio.create_task(one(ask)))
        outcomes = list(await asyncio.gather(*running))
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return outcomes, clock.now() - start


def arrival_times(asks: Sequence[Ask], rate: float, seed: int) -> list[float]:
    """Seconds after the start: those of a trace, or a Poisson process of that rate."""
    if all(ask.at is not None for ask in asks):
        return [ask.at or 0.0 for ask in asks]
    if rate == float("inf"):
        return [0.0] * len(asks)
    gaps = np.random.default_rng(seed).exponential(1 / rate, len(asks))
    times: list[float] = np.cumsum(gaps).tolist()
    return [moment - times[0] for moment in times]


def _shown(told: Any) -> str:
    return json.dumps(told)[:200]


async def _check(response: httpx.Response) -> None:
    if response.status_code != 200:
        text = (await response.aread()).decode(errors="replace")
        raise RequestFailed(f"HTTP {response.status_code}", _message(text))


def _message(text: str) -> str:
    try:
        told: Any = json.loads(text)
    except ValueError:
        return text[:200]
    if isinstance(told, dict):
        error = told.get("error", told)
        return str(error.get("message", error) if isinstance(error, dict) else error)
    return str(told)
