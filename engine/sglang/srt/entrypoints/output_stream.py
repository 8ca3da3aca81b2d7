"""What the scheduler has said about a request's answers and nobody has sent on yet."""

import asyncio
from collections.abc import Mapping, Sequence

from sglang.srt.core.messages import LogprobRows, RequestOutput
from sglang.srt.observability.answer_watch import AnswerWatch


class OutputStream:
    """Mailbox of one rpc. News of the same answer is merged until it is taken.

    So a slow client costs no more memory than its answer, and gets fewer, larger messages.
    """

    def __init__(
        self, rids: Sequence[str], watches: Mapping[str, AnswerWatch] | None = None
    ) -> None:
        """`watches`, by rid, are told of the news as it comes."""
        self._watches = watches or {}
        self.rids = tuple(rids)
        self.unfinished = set(rids)
        self._pending: dict[str, RequestOutput] = {}
        self._error: Exception | None = None
        self._news = asyncio.Event()

    @property
    def has_news(self) -> bool:
        return bool(self._pending) or self._error is not None

    def put(self, output: RequestOutput) -> None:
        if (watch := self._watches.get(output.rid)) is not None:
            watch.progressed(output)
        waiting = self._pending.get(output.rid)
        self._pending[output.rid] = merge(waiting, output) if waiting else output
        if output.finish is not None:
            self.unfinished.discard(output.rid)
        self._news.set()

    def fail(self, error: Exception) -> None:
        """`take` raises `error` once everything before it is taken."""
        self._error = error
        for rid in self._watches.keys() & self.unfinished:
            self._watches[rid].failed(str(error))
        self._news.set()

    async def take(self) -> list[RequestOutput]:
        """The news since the last call, at most one entry per answer. Waits for some."""
        await self._news.wait()
        self._news.clear()
        outputs, self._pending = list(self._pending.values()), {}
        if self._error is not None:
            self._news.set()
            if not outputs:
                raise self._error
        return outputs


def merge(earlier: RequestOutput, later: RequestOutput) -> RequestOutput:
    """One output that says what both say; takes over their lists. Counts are totals, so the later
    ones hold.
    """
    earlier.token_ids += later.token_ids
    later.token_ids = earlier.token_ids
    later.output_logprobs = join_rows(earlier.output_logprobs, later.output_logprobs)
    later.input_logprobs = earlier.input_logprobs or later.input_logprobs
    later.times = later.times or earlier.times
    return later


def join_rows(earlier: LogprobRows | None, later: LogprobRows | None) -> LogprobRows | None:
    """The rows of consecutive positions as one block, which takes over the lists of `earlier`."""
    if earlier is None or later is None:
        return earlier or later
    earlier.logprobs += later.logprobs
    earlier.token_ids += later.token_ids
    earlier.top += later.top
    earlier.chosen += later.chosen
    return earlier
