"""Runs calls against the scheduler. Everything here belongs to the worker's event loop."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Any, TypeVar

from sglang.srt.core.messages import RequestOutput
from sglang.srt.entrypoints.offline.answers import Json, NativeAnswer
from sglang.srt.entrypoints.offline.errors import raise_refusal
from sglang.srt.entrypoints.offline.requests import PromptRequest, Request, ServedModel
from sglang.srt.entrypoints.output_stream import OutputStream
from sglang.srt.entrypoints.scheduler_client import SchedulerClient
from sglang.srt.entrypoints.service import EngineService

Item = TypeVar("Item")
Result = TypeVar("Result")


async def generate(service: EngineService, model: ServedModel, request: Request) -> Any:
    """The reply of `/generate`: an object, or a list in the prompts' order."""

    async def one(prompt: PromptRequest) -> list[Json]:
        async with service.adapters.used_by(prompt.inputs):
            return await _bodies(service.client, model, prompt)

    replies = [body for bodies in await _each(one, request.prompts) for body in bodies]
    return replies if request.as_list else replies[0]


async def stream(
    service: EngineService, model: ServedModel, request: Request
) -> AsyncIterator[Json]:
    """The events of a streamed reply: each is the whole answer so far."""
    inputs = [entry for prompt in request.prompts for entry in prompt.inputs]
    async with AsyncExitStack() as opened:
        await opened.enter_async_context(service.adapters.used_by(inputs))
        answers: dict[str, NativeAnswer] = {}
        streams: list[OutputStream] = []
        for prompt in request.prompts:
            news, own = opened.enter_context(_answers_of(service.client, model, prompt))
            streams.append(news)
            answers |= own
        numbers = {rid: number for number, rid in enumerate(answers)}
        async for output in _merged(streams):
            answer = _deliver(answers, output)
            yield answer.event(numbers[output.rid] if request.as_list else None)


async def encode(
    client: SchedulerClient, request: Request, shape: Callable[[list[float]], list[float]]
) -> Any:
    """The reply of `/encode`; `shape` has the last word on each vector."""

    async def one(prompt: PromptRequest) -> Json:
        start = time.monotonic()
        with client.open(prompt.rid, prompt.inputs) as news:
            output = await _last(news)
        info = {
            "id": prompt.rid,
            "prompt_tokens": output.prompt_tokens,
            "e2e_latency": time.monotonic() - start,
        }
        return {"embedding": shape(output.embedding or []), "meta_info": info}

    replies = await _each(one, request.prompts)
    return replies if request.as_list else replies[0]


async def _bodies(client: SchedulerClient, model: ServedModel, prompt: PromptRequest) -> list[Json]:
    with _answers_of(client, model, prompt) as (stream, answers):
        while stream.unfinished or stream.has_news:
            for output in await stream.take():
                _deliver(answers, output)
    return [answer.body() for answer in answers.values()]


@contextmanager
def _answers_of(
    client: SchedulerClient, model: ServedModel, prompt: PromptRequest
) -> Iterator[tuple[OutputStream, dict[str, NativeAnswer]]]:
    """Starts a prompt's answers; by the scheduler's id of each."""
    answers = {
        entry.rid: NativeAnswer(prompt, number, model) for number, entry in enumerate(prompt.inputs)
    }
    with client.open(prompt.rid, prompt.inputs) as stream:
        yield stream, answers


def _deliver(answers: dict[str, NativeAnswer], output: RequestOutput) -> NativeAnswer:
    raise_refusal(output.finish)
    answer = answers[output.rid]
    answer.take(output)
    return answer


async def _last(news: OutputStream) -> RequestOutput:
    while True:
        for output in await news.take():
            raise_refusal(output.finish)
            if output.finish is not None:
                return output


async def _merged(streams: Sequence[OutputStream]) -> AsyncIterator[RequestOutput]:
    """The news of all streams as they come."""
    takes = {asyncio.ensure_future(news.take()): news for news in streams}
    try:
        while takes:
            done, _ = await asyncio.wait(takes, return_when=asyncio.FIRST_COMPLETED)
            for take in done:
                news = takes.pop(take)
                for output in take.result():
                    yield output
                if news.unfinished or news.has_news:
                    takes[asyncio.ensure_future(news.take())] = news
    finally:
        for take in takes:
            take.cancel()


async def _each(work: Callable[[Item], Awaitable[Result]], items: Sequence[Item]) -> list[Result]:
    """All at once; the first failure ends the others."""
    tasks = [asyncio.ensure_future(work(item)) for item in items]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
