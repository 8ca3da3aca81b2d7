"""The server that is measured, apart from the measured requests."""

from collections.abc import Sequence
from typing import Any

import httpx

from sglang.benchmark.backends import BACKENDS, Ask
from sglang.benchmark.client import Clock, Sender
from sglang.benchmark.errors import BenchmarkError
from sglang.benchmark.options import Options

READY_POLL_SECONDS = 0.5
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
    end = clock.now() + options.ready_check_timeout_sec
    while True:
        try:
            answer = await client.get("/v1/models")
            models = answer.json().get("data") if answer.status_code == 200 else None
            why = f"/v1/models answers {answer.status_code} without a model"
            if models:
                return str(models[0]["id"])
        except (httpx.HTTPError, ValueError, AttributeError) as error:
            why = repr(error)
        if clock.now() >= end:
            raise BenchmarkError(
                f"{options.url} is not ready after {options.ready_check_timeout_sec:g} s: {why}; "
                "start a server there, or raise --ready-check-timeout-sec"
            )
        await clock.sleep(READY_POLL_SECONDS)


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
        answer = await client.post("/flush_cache")
        answer.raise_for_status()
    except httpx.HTTPError as error:
        raise BenchmarkError(f"--flush-cache: the server did not: {error}") from error


async def server_info(client: httpx.AsyncClient, options: Options) -> dict[str, Any] | None:
    """What the server tells about itself; None where it does not."""
    if not BACKENDS[options.backend].is_sglang:
        return None
    try:
        answer = await client.get("/server_info")
        return dict(answer.json()) if answer.status_code == 200 else None
    except (httpx.HTTPError, ValueError):
        return None
