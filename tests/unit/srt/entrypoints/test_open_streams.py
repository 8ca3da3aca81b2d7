"""News goes to the request that it belongs to."""

import asyncio

from sglang.srt.core.messages import FinishReason, RequestOutput
from sglang.srt.entrypoints.open_streams import OpenStreams

ABORTED = FinishReason(type="abort", message="The client is gone")


def test_last_words_of_an_abandoned_answer_do_not_reach_the_next_one_of_its_id() -> None:
    async def taken() -> list[list[int]]:
        streams = OpenStreams()
        first = streams.open("a", ["a"])
        assert streams.close("a", first) == ["a"]
        second = streams.open("a", ["a"])
        streams.deliver(RequestOutput(rid="a", token_ids=[1]))
        streams.deliver(RequestOutput(rid="a", token_ids=[2], finish=ABORTED))
        assert not second.has_news and second.unfinished
        streams.deliver(RequestOutput(rid="a", token_ids=[3]))
        streams.deliver(RequestOutput(rid="a", token_ids=[4], finish=FinishReason(type="length")))
        news = [output.token_ids for output in await second.take()]
        assert streams.num_unfinished == 0 and streams.close("a", second) == []
        return news

    assert asyncio.run(taken()) == [[3, 4]]


def test_an_answer_that_ended_leaves_nothing_to_wait_for() -> None:
    async def taken() -> list[list[int]]:
        streams = OpenStreams()
        first = streams.open("a", ["a"])
        streams.deliver(RequestOutput(rid="a", finish=FinishReason(type="length")))
        assert streams.close("a", first) == []
        second = streams.open("a", ["a"])
        streams.deliver(RequestOutput(rid="a", token_ids=[3]))
        return [output.token_ids for output in await second.take()]

    assert asyncio.run(taken()) == [[3]]
