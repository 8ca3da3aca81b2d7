"""`Embed` against a played scheduler."""

import asyncio
from typing import Any

import grpc
import pytest

from sglang.srt.core.messages import AbortInput, FinishReason, GenerateInput, RequestOutput
from sglang.srt.entrypoints import wire
from tests.wire.fake_scheduler import CONTEXT_LEN, GUARD, VOCAB_SIZE, Worker, finish

REFUSAL = "This engine generates text and gives no embeddings; start one with --is-embedding."


def embed_request(request_id: str = "e", ids: tuple[int, ...] = (5, 6, 7), **fields: Any) -> Any:
    request = wire.scheduler("EmbedRequest")(request_id=request_id, **fields)
    request.tokenized.input_ids.extend(ids)
    return request


async def status_of(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(call, GUARD)
    return caught.value.code(), caught.value.details()


async def test_vector_comes_with_its_length_and_the_prompts(worker: Worker) -> None:
    call = worker.rpc.Embed(embed_request())
    got = await worker.scheduler.receive()
    assert isinstance(got, GenerateInput)
    assert (got.rid, got.input_ids, got.wants_embedding) == ("e", [5, 6, 7], True)
    assert (got.sampling.max_new_tokens, got.stream) == (0, False)
    vector = finish("e", [], 0)
    vector.embedding = [0.5, -0.25]
    await worker.scheduler.step(vector)
    answer = await asyncio.wait_for(call, GUARD)
    assert (answer.embedding_dim, list(answer.embedding)) == (2, [0.5, -0.25])
    assert answer.prompt_tokens == 3


async def test_engine_that_generates_refuses(worker: Worker) -> None:
    call = worker.rpc.Embed(embed_request())
    await worker.scheduler.receive()
    reason = FinishReason(type="abort", message=REFUSAL, status_code=400)
    await worker.scheduler.step(RequestOutput(rid="e", finish=reason))
    assert await status_of(call) == (grpc.StatusCode.INVALID_ARGUMENT, REFUSAL)


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (embed_request(""), "request_id must not be empty"),
        (embed_request(ids=()), "tokenized.input_ids must hold at least one token id"),
        (embed_request(ids=(VOCAB_SIZE,)), f"0 … {VOCAB_SIZE - 1}; got {VOCAB_SIZE}"),
        (embed_request(ids=(1,) * CONTEXT_LEN), f"The input ({CONTEXT_LEN} tokens)"),
        (embed_request(is_cross_encoder=True), "is_cross_encoder must be absent"),
        (embed_request(token_type_ids=[0, 1]), "token_type_ids must be absent"),
        (embed_request(texts=["a"]), "texts must be absent"),
        (embed_request(data_parallel_rank=1), "data_parallel_rank must be absent"),
        (embed_request(mm_inputs={"image_urls": ["x"]}), "mm_inputs must be absent"),
    ],
)
async def test_wrong_request_is_named(worker: Worker, request_: Any, text: str) -> None:
    code, details = await status_of(worker.rpc.Embed(request_))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text in details


async def test_caller_that_leaves_frees_the_worker(worker: Worker) -> None:
    call = worker.rpc.Embed(embed_request())
    await worker.scheduler.receive()
    call.cancel()
    left = await worker.scheduler.receive()
    assert isinstance(left, AbortInput)
    assert left.rids == ["e"]


async def test_id_that_runs_already_is_refused(worker: Worker) -> None:
    worker.rpc.Embed(embed_request())
    await worker.scheduler.receive()
    code, details = await status_of(worker.rpc.Embed(embed_request()))
    assert code is grpc.StatusCode.ALREADY_EXISTS
    assert "Duplicate request ID detected: e" in details


async def test_dead_scheduler_ends_the_call(worker: Worker) -> None:
    call = worker.rpc.Embed(embed_request())
    await worker.scheduler.receive()
    worker.client.fail("the scheduler is gone")
    assert await status_of(call) == (grpc.StatusCode.UNAVAILABLE, "the scheduler is gone")
