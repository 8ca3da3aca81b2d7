"""One answer on its way to the gateway: collects what `complete` needs."""

from collections.abc import Iterator
from typing import Any

import msgspec

from sglang.srt.core.messages import LogprobRows, RequestOutput
from sglang.srt.entrypoints import grpc_convert
from sglang.srt.entrypoints.output_stream import join_rows
from sglang.srt.observability.answer_watch import AnswerWatch


class Answer:
    """Turns the scheduler's news of one answer into `GenerateResponse` messages.

    Streaming: new tokens with their rows as chunks, then `complete` with all ids. Otherwise
    `complete` alone, with ids and rows.
    """

    def __init__(self, request: Any, index: int, watch: AnswerWatch | None) -> None:
        self._request_id = request.request_id
        self._stream = request.stream
        self._index = index
        self._watch = watch
        self._ids: list[int] = []
        self._output_rows: LogprobRows | None = None
        self._input_rows: LogprobRows | None = None

    def messages(self, output: RequestOutput) -> Iterator[Any]:
        """What to send on for `output`."""
        self._ids += output.token_ids
        if self._watch is not None:
            self._watch.progressed(output)
        if self._stream:
            if output.token_ids or output.input_logprobs is not None:
                yield grpc_convert.chunk(self._request_id, self._index, output)
        else:
            self._output_rows = join_rows(self._output_rows, output.output_logprobs)
            self._input_rows = self._input_rows or output.input_logprobs
        if output.finish is not None:
            everything = msgspec.structs.replace(
                output,
                token_ids=self._ids,
                output_logprobs=self._output_rows,
                input_logprobs=self._input_rows,
            )
            yield grpc_convert.complete(self._request_id, self._index, everything)

    def refused(self, output: RequestOutput) -> None:
        """The caller gets a status instead of messages."""
        if self._watch is not None and output.finish is not None:
            self._watch.refused(output.finish, output.times)

    def close(self) -> None:
        """Everything is sent, or nobody waits any more. May be called again."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
