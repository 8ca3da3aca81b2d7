"""The mailbox between the scheduler's news and one rpc."""

import asyncio

import pytest

from sglang.srt.core.messages import FinishReason, LogprobRows, RequestOutput, RequestTimes
from sglang.srt.entrypoints.output_stream import OutputStream


def news(rid: str, ids: list[int], total: int, **more) -> RequestOutput:
    return RequestOutput(rid=rid, token_ids=ids, completion_tokens=total, **more)


async def test_news_of_one_answer_is_merged_until_taken() -> None:
    stream = OutputStream(["a", "b"])
    rows = [LogprobRows(logprobs=[-float(i)], token_ids=[i]) for i in (1, 2)]
    times = RequestTimes(received=1.0)
    stream.put(
        news("a", [1], 1, output_logprobs=rows[0], input_logprobs=LogprobRows(), times=times)
    )
    stream.put(news("b", [9], 1))
    stream.put(news("a", [2], 2, output_logprobs=rows[1], finish=FinishReason(type="stop")))
    a, b = await stream.take()
    assert (a.token_ids, a.completion_tokens, b.token_ids) == ([1, 2], 2, [9])
    assert a.output_logprobs == LogprobRows(logprobs=[-1.0, -2.0], token_ids=[1, 2])
    assert a.input_logprobs == LogprobRows() and a.times == times
    assert a.finish is not None and stream.unfinished == {"b"}
    assert not stream.has_news


async def test_take_waits_for_news() -> None:
    stream = OutputStream(["a"])
    waiting = asyncio.ensure_future(stream.take())
    await asyncio.sleep(0)
    assert not waiting.done()
    stream.put(news("a", [1], 1))
    assert [output.token_ids for output in await waiting] == [[1]]


async def test_failure_comes_after_what_was_there() -> None:
    stream = OutputStream(["a"])
    stream.put(news("a", [1], 1))
    stream.fail(RuntimeError("gone"))
    assert len(await stream.take()) == 1
    with pytest.raises(RuntimeError, match="gone"):
        await stream.take()
