"""The rpc `Embed` of `sglang.grpc.scheduler`."""

from typing import Any

from sglang.srt.core.messages import RequestOutput
from sglang.srt.entrypoints import wire
from sglang.srt.entrypoints.answer_inputs import InvalidRequest, embedding_input
from sglang.srt.entrypoints.output_stream import OutputStream
from sglang.srt.entrypoints.refused import RefusedRequest, is_refusal
from sglang.srt.entrypoints.rpc_status import deadline_of, errors_as_status
from sglang.srt.entrypoints.service import EngineService
from sglang.srt.entrypoints.trace_context import trace_context

UNSERVED = {
    "is_cross_encoder": "pairs of texts are not scored",
    "token_type_ids": "pairs of texts are not scored",
    "texts": "the prompt is tokenized.input_ids",
    "data_parallel_rank": "this is one rank",
}


class Embedding:
    """Answers for one worker; a worker without --is-embedding refuses."""

    def __init__(self, service: EngineService) -> None:
        self._service = service

    async def embed(self, request: Any, context: Any) -> Any:
        deadline = deadline_of(context)
        async with errors_as_status(context):
            output = await self._embed(request, deadline, trace_context(context))
        vector = output.embedding or []
        return wire.scheduler("EmbedResponse")(
            embedding=vector, embedding_dim=len(vector), prompt_tokens=output.prompt_tokens
        )

    async def _embed(
        self, request: Any, deadline: float | None, headers: dict[str, str]
    ) -> RequestOutput:
        _refuse_what_is_not_served(request)
        model = self._service.ready.model
        wish = embedding_input(
            request.request_id,
            list(request.tokenized.input_ids),
            vocab_size=model.vocab_size,
            context_len=model.context_len,
            prompt_field="tokenized.input_ids",
        )
        wish.deadline = deadline
        with self._service.client.open(request.request_id, [wish], headers) as stream:
            return await embedding_of(stream)


async def embedding_of(stream: OutputStream) -> RequestOutput:
    """The one answer of an embedding request. Raises RefusedRequest."""
    while True:
        for output in await stream.take():
            if output.finish is None:
                continue
            if is_refusal(output.finish) or output.embedding is None:
                raise RefusedRequest(output.finish)
            return output


def _refuse_what_is_not_served(request: Any) -> None:
    if not request.request_id:
        raise InvalidRequest("request_id must not be empty")
    for field, reason in UNSERVED.items():
        if getattr(request, field):
            raise InvalidRequest(f"{field} must be absent: {reason}")
    if request.HasField("mm_inputs") and request.mm_inputs.ByteSize():
        raise InvalidRequest("mm_inputs must be absent: this model takes text only")
