"""The server that is measured, apart from the measured requests."""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import httpx

from sglang.benchmark.backends import BACKENDS, Ask
from sglang.benchmark.client import Clock, Sender
from sglang.benchmark.errors import BenchmarkError
from sglang.benchmark.options import Options

READY_POLL_SECONDS = 0.5
PROBE_SECONDS = 5.0  # for one question whether the server is ready
ASIDE_SECONDS = 60.0  # for requests that are not measured
SILENCE_SECONDS = 3600.0  # a request that hears nothing for so long has failed
CONNECT_SECONDS = 60.0


def new_client(options: Options) -> httpx.AsyncClient:
    """As many connections as requests; proxies of the environment are not used."""
    return httpx.AsyncClient(
        base_url=options.url,
        headers=options.headers,
        timeout=httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        trust_env=False,
    )


async def wait_ready(client: httpx.AsyncClient, options: Options, clock: Clock) -> str:
    """Asks until the server lists a model; -> the first one's id."""
    limit = options.ready_check_timeout_sec
    end = clock.now() + limit
    left, why = limit or PROBE_SECONDS, ""  # without time to wait it is asked once
    while left > 0:
        seconds = min(PROBE_SECONDS, left)
        try:
            answer = await asyncio.wait_for(client.get("/v1/models"), seconds)
            _check_allowed(answer, options)
            if (model := _first_model(answer)) is not None:
                return model
            why = f"/v1/models answers {answer.status_code} without a model"
        except asyncio.TimeoutError:
            why = f"/v1/models does not answer within {seconds:g} s"
        except httpx.HTTPError as error:
            why = repr(error)
        await clock.sleep(min(READY_POLL_SECONDS, max(end - clock.now(), 0.0)))
        left = end - clock.now()
    raise BenchmarkError(
        f"{options.url} is not ready after {limit:g} s: {why}; start a server there, or raise "
        "--ready-check-timeout-sec"
    )


def _check_allowed(answer: httpx.Response, options: Options) -> None:
    if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        raise BenchmarkError(
            f"{options.url} refuses /v1/models with {answer.status_code}; give its key as "
            '--header Authorization="Bearer KEY"'
        )


def _first_model(answer: httpx.Response) -> str | None:
    if answer.status_code != httpx.codes.OK:
        return None
    try:
        return str(answer.json()["data"][0]["id"])
    except (ValueError, LookupError, TypeError):
        return None


async def warm_up(sender: Sender, asks: Sequence[Ask], count: int) -> None:
    """The first requests, not counted; one that fails ends the benchmark."""
    for number in range(count):
        outcome = await sender.send(asks[number % len(asks)])
        if outcome.failure is not None:
            raise BenchmarkError(
                f"the warm-up request failed with {outcome.failure.kind}: {outcome.failure.message}"
            )


async def flush_cache(client: httpx.AsyncClient) -> None:
    try:
        answer = await client.post("/flush_cache", timeout=ASIDE_SECONDS)
        answer.raise_for_status()
    except httpx.HTTPError as error:
        raise BenchmarkError(f"--flush-cache: the server did not: {error}") from error


async def server_info(client: httpx.AsyncClient, options: Options) -> dict[str, Any] | None:
    """What the server tells about itself; None where it does not."""
    if not BACKENDS[options.backend].is_sglang:
        return None
    try:
        answer = await client.get("/server_info", timeout=ASIDE_SECONDS)
        told = answer.json() if answer.status_code == httpx.codes.OK else None
    except (httpx.HTTPError, ValueError):
        return None
    return told if isinstance(told, dict) else None


def accept_length(info: dict[str, Any] | None) -> float | None:
    """Tokens per step of speculation, the mean over the server's schedulers; None where none
    speculates or the server does not say."""
    states = (info or {}).get("internal_states")
    lengths = [
        float(length)
        for state in (states if isinstance(states, list) else [])
        if isinstance(state, dict)
        and isinstance(length := state.get("avg_spec_accept_length"), int | float)
        and math.isfinite(length)
    ]
    return sum(lengths) / len(lengths) if lengths else None
