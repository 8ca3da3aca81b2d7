"""Which requests are under way, and where the news of their answers go."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

from sglang.srt.core.messages import RequestOutput
from sglang.srt.entrypoints.output_stream import OutputStream
from sglang.srt.observability.answer_watch import AnswerWatch


class DuplicateRequest(Exception):
    """The id belongs to a request that still runs."""


class OpenStreams:
    """A request has one stream, which carries all its answers; each answer has an id of its own."""

    def __init__(self) -> None:
        self._streams: dict[str, OutputStream] = {}  # by the rid of each answer
        self._groups: dict[str, tuple[str, ...]] = {}  # request id → rids of its answers
        self._abandoned: Counter[str] = Counter()  # answers by rid whose end is still to come
        self.num_unfinished = 0  # answers
        self.idle = asyncio.Event()  # set while no request is open
        self.idle.set()

    def __len__(self) -> int:
        """Requests."""
        return len(self._groups)

    def open(
        self, request_id: str, rids: Sequence[str], watches: Mapping[str, AnswerWatch] | None = None
    ) -> OutputStream:
        """Raises DuplicateRequest."""
        for rid in (request_id, *rids):
            if rid in self._groups or rid in self._streams:
                raise DuplicateRequest(f"Duplicate request ID detected: {rid}")
        stream = OutputStream(rids, watches)
        self._groups[request_id] = stream.rids
        self._streams.update(dict.fromkeys(stream.rids, stream))
        self.num_unfinished += len(stream.rids)
        self.idle.clear()
        return stream

    def close(self, request_id: str, stream: OutputStream) -> list[str]:
        """Returns the answers that nobody waits for any more though they are not finished.

        What the scheduler says of them until their end is for nobody, whoever takes the id next.
        """
        for rid in stream.rids:
            self._streams.pop(rid, None)
        self._groups.pop(request_id, None)
        self.num_unfinished -= len(stream.unfinished)
        if not self._groups:
            self.idle.set()
        self._abandoned.update(stream.unfinished)
        return [rid for rid in stream.rids if rid in stream.unfinished]

    def answers_of(self, name: str) -> list[str]:
        """Of a request, or the one answer of that id; none when it is not open."""
        return list(self._groups.get(name, (name,) if name in self._streams else ()))

    def deliver(self, output: RequestOutput) -> None:
        if output.rid in self._abandoned:
            if output.finish is not None:
                self._abandoned -= Counter((output.rid,))
            return
        stream = self._streams.get(output.rid)
        if stream is None:
            return  # the warm-up's
        before = len(stream.unfinished)
        stream.put(output)
        self.num_unfinished -= before - len(stream.unfinished)

    def fail(self, error: Exception) -> None:
        for stream in set(self._streams.values()):
            stream.fail(error)
