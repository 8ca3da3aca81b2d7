"""One answer on its way to the gateway: collects what `complete` needs."""

from collections.abc import Iterator
from typing import Any

import msgspec

from sglang.srt.core.messages import LogprobRows, RequestOutput
from sglang.srt.entrypoints import grpc_convert
from sglang.srt.entrypoints.output_stream import join_rows


class Answer:
    """Turns the scheduler's news of one answer into `GenerateResponse` messages.

    Streaming: new tokens with their rows as chunks, then `complete` with all ids. Otherwise
    `complete` alone, with ids and rows.
    """

    def __init__(self, request: Any, index: int, *, tells_times: bool = False) -> None:
        """`tells_times`: the first chunk and `complete` say when the request passed its stages."""
        self._tells_times = tells_times
        self._has_begun = False
        self._request_id = request.request_id
        self._stream = request.stream
        self._index = index
        self._ids: list[int] = []
        self._output_rows: LogprobRows | None = None
        self._input_rows: LogprobRows | None = None

    def messages(self, output: RequestOutput) -> Iterator[Any]:
        """What to send on for `output`."""
        self._ids += output.token_ids
        if not self._tells_times:
            output.times = None
        if self._stream:
            if output.token_ids or output.input_logprobs is not None:
                opens, self._has_begun = not self._has_begun, True
                yield grpc_convert.chunk(self._request_id, self._index, output, opens=opens)
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
