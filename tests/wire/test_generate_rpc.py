"""`Generate` and `Abort` against a played scheduler."""

import asyncio
import time
from typing import Any

import grpc
import pytest

from sglang.srt.core.messages import (
    AbortInput,
    GenerateInput,
    LogprobRows,
    RequestTimes,
    TopRow,
)
from sglang.srt.entrypoints import wire
from sglang.srt.entrypoints.scheduler_client import SchedulerUnavailable
from tests.wire.fake_scheduler import (
    CONTEXT_LEN,
    GUARD,
    VOCAB_SIZE,
    Worker,
    finish,
    generate_request,
    serve,
    tokens,
)


async def read(call: Any) -> Any:
    """The next message, or EOF."""
    return await asyncio.wait_for(call.read(), GUARD)


async def read_all(call: Any) -> list[Any]:
    messages = []
    while (message := await call.read()) is not grpc.aio.EOF:
        messages.append(message)
    return messages


async def status_of(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(read_all(call), GUARD)
    return caught.value.code(), caught.value.details()


async def test_stream_sends_only_new_ids_and_then_all_of_them(worker: Worker) -> None:
    call = worker.rpc.Generate(generate_request("a"))
    got = await worker.scheduler.receive()
    assert isinstance(got, GenerateInput)
    assert (got.rid, got.input_ids, got.stream) == ("a", [5, 6, 7], True)
    await worker.scheduler.step(tokens("a", [10], 1))
    first = await read(call)
    assert (first.request_id, list(first.chunk.token_ids)) == ("a", [10])
    assert (first.chunk.prompt_tokens, first.chunk.cached_tokens) == (3, 1)
    await worker.scheduler.step(finish("a", [11, 12], 3, type="stop", matched=12))
    chunk, complete, end = await read(call), await read(call), await read(call)
    assert list(chunk.chunk.token_ids) == [11, 12]
    done = complete.complete
    assert list(done.output_ids) == [10, 11, 12]
    assert (done.finish_reason, done.matched_token_id, done.completion_tokens) == ("stop", 12, 3)
    assert end is grpc.aio.EOF


@pytest.mark.parametrize("measures", [True, False])
async def test_first_chunk_and_end_tell_tiers_and_times(measures: bool) -> None:
    async with serve(enable_metrics=measures) as worker:
        await worker.become_ready()
        call = worker.rpc.Generate(generate_request("a"))
        await worker.scheduler.receive()
        origin = {"device": 1, "host": 0, "storage": 0}
        now = time.monotonic()
        times = RequestTimes(received=now - 3, admissions=[now - 2], prefilled=now - 1)
        for total in (1, 2):
            more = {"times": times} if total == 1 else {}
            await worker.scheduler.step(
                tokens("a", [9 + total], total, cached_tokens_details=origin, **more)
            )
            chunk = (await read(call)).chunk
            assert chunk.HasField("cached_tokens_details") == (total == 1)
            assert chunk.HasField("times") == (measures and total == 1)
        await worker.scheduler.step(finish("a", [], 2))
        complete = (await read(call)).complete
        assert complete.HasField("times") == measures
        if measures:
            assert abs(complete.times.admitted - time.time()) < GUARD
            assert not complete.times.HasField("compiled")


async def test_whole_answer_is_one_complete(worker: Worker) -> None:
    call = worker.rpc.Generate(generate_request("a", stream=False))
    assert (await worker.scheduler.receive()).stream is False
    rows = [LogprobRows(logprobs=[-float(i)], token_ids=[i]) for i in (10, 11)]
    await worker.scheduler.step(
        tokens("a", [10], 1, output_logprobs=rows[0],
               input_logprobs=LogprobRows(logprobs=[None, -0.5], token_ids=[5, 6])),
    )  # fmt: skip
    last = finish("a", [11], 2, type="stop", matched="END")
    last.output_logprobs = rows[1]
    await worker.scheduler.step(last)
    (message,) = await asyncio.wait_for(read_all(call), GUARD)
    done = message.complete
    assert list(done.output_ids) == [10, 11]
    assert done.matched_stop_str == "END"
    assert list(done.output_logprobs.token_logprobs) == [-10.0, -11.0]
    assert [row.HasField("value") for row in done.input_logprobs.token_logprobs] == [False, True]


async def test_logprob_rows_go_with_their_tokens(worker: Worker) -> None:
    call = worker.rpc.Generate(generate_request("a", return_logprob=True, top_logprobs_num=2))
    await worker.scheduler.receive()
    rows = LogprobRows(
        logprobs=[-0.5], token_ids=[10], top=[TopRow(logprobs=[-0.5, -1.0], token_ids=[10, 4])]
    )
    await worker.scheduler.step(tokens("a", [10], 1, output_logprobs=rows))
    chunk = (await read(call)).chunk
    assert list(chunk.output_logprobs.token_ids) == [10]
    assert list(chunk.output_logprobs.top_logprobs[0].token_ids) == [10, 4]
    await worker.scheduler.step(finish("a", [], 1))
    assert not (await read(call)).complete.HasField("output_logprobs")


async def test_no_new_token_still_reports_the_prompt(worker: Worker) -> None:
    call = worker.rpc.Generate(generate_request("a", sampling={"max_new_tokens": 0}))
    assert (await worker.scheduler.receive()).sampling.max_new_tokens == 0
    rows = LogprobRows(logprobs=[None, -1.0, -2.0], token_ids=[5, 6, 7])
    last = finish("a", [], 0)
    last.input_logprobs = rows
    await worker.scheduler.step(last)
    chunk, complete = await asyncio.wait_for(read_all(call), GUARD)
    assert list(chunk.chunk.input_logprobs.token_ids) == [5, 6, 7]
    assert (complete.complete.finish_reason, complete.complete.completion_tokens) == ("length", 0)


async def test_n_answers_are_n_requests_of_the_scheduler(worker: Worker) -> None:
    call = worker.rpc.Generate(generate_request("a", sampling={"n": 2, "sampling_seed": 7}))
    inputs = await worker.scheduler.receive_many(2)
    assert [entry.sampling.n for entry in inputs] == [1, 1]
    assert [entry.sampling.sampling_seed for entry in inputs] == [7, 8]
    one, two = [entry.rid for entry in inputs]
    assert one != two
    await worker.scheduler.step(tokens(two, [20], 1))
    await worker.scheduler.step(finish(one, [10], 1), finish(two, [21], 2))
    messages = await asyncio.wait_for(read_all(call), GUARD)
    ids: dict[int, list[int]] = {0: [], 1: []}
    completes = {}
    for message in messages:
        if message.WhichOneof("response") == "chunk":
            ids[message.chunk.index] += message.chunk.token_ids
        else:
            completes[message.complete.index] = list(message.complete.output_ids)
    assert ids == {0: [10], 1: [20, 21]} == completes


async def test_a_slow_reader_gets_merged_tokens(worker: Worker) -> None:
    """News that comes in one burst is one message."""
    with worker.client.open("a", [_input("a")]) as stream:
        await worker.scheduler.receive()
        for number in range(5):
            await worker.scheduler.step(tokens("a", [number], number + 1))
        await worker.scheduler.step(finish("a", [5], 6))
        while stream.unfinished:
            outputs = await asyncio.wait_for(stream.take(), GUARD)
        assert sum(len(output.token_ids) for output in outputs) <= 6
        assert outputs[-1].completion_tokens == 6


def _input(rid: str) -> GenerateInput:
    from sglang.srt.core.sampling_params import SamplingParams

    return GenerateInput(rid=rid, input_ids=[1], sampling=SamplingParams())


# ------------------------------------------------------------------ headers and errors


async def test_headers_come_with_the_first_message(worker: Worker) -> None:
    call = worker.rpc.Generate(generate_request("a"))
    await worker.scheduler.receive()
    headers = asyncio.ensure_future(call.initial_metadata())
    # An answer on the same connection: what was sent before it would have arrived before it.
    await worker.rpc.HealthCheck(wire.scheduler("HealthCheckRequest")())
    assert not headers.done()
    await worker.scheduler.step(tokens("a", [10], 1))
    await asyncio.wait_for(headers, GUARD)
    call.cancel()


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, grpc.StatusCode.INVALID_ARGUMENT),
        (429, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (500, grpc.StatusCode.INTERNAL),
        (503, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (504, grpc.StatusCode.DEADLINE_EXCEEDED),
    ],
)
async def test_refusal_before_the_first_message_is_a_status(
    worker: Worker, status: int, code: grpc.StatusCode
) -> None:
    call = worker.rpc.Generate(generate_request("a"))
    await worker.scheduler.receive()
    await worker.scheduler.step(
        finish("a", [], 0, type="abort", message="No, for a reason.", status_code=status)
    )
    assert await status_of(call) == (code, "No, for a reason.")


async def test_a_full_queue_is_not_an_unavailable_worker(worker: Worker) -> None:
    call = worker.rpc.Generate(generate_request("a"))
    await worker.scheduler.receive()
    await worker.scheduler.step(
        finish("a", [], 0, type="abort", message="The request queue is full.", status_code=503)
    )
    full = (grpc.StatusCode.RESOURCE_EXHAUSTED, "The request queue is full.")
    assert await status_of(call) == full


async def test_what_waits_is_bounded_before_the_scheduler_looks() -> None:
    """It looks between steps only, which may be far apart."""
    async with serve(max_queued_requests=2) as worker:
        await worker.become_ready()  # runs 8 at once
        calls = [
            worker.rpc.Generate(generate_request(f"r{i}", sampling={"n": 2})) for i in range(5)
        ]
        await worker.scheduler.receive_many(10)
        full = (grpc.StatusCode.RESOURCE_EXHAUSTED, "The request queue is full.")
        assert await status_of(worker.rpc.Generate(generate_request("a"))) == full
        await worker.scheduler.step(finish("r0#0", [1], 1))
        await read(calls[0])
        calls.append(worker.rpc.Generate(generate_request("b")))
        assert (await worker.scheduler.receive()).rid == "b"
        calls[1].cancel()
        assert isinstance(await worker.scheduler.receive(), AbortInput)
        calls += [worker.rpc.Generate(generate_request(rid)) for rid in ("c", "d")]
        assert {e.rid for e in await worker.scheduler.receive_many(2)} == {"c", "d"}
        assert await status_of(worker.rpc.Generate(generate_request("e"))) == full


async def test_refusal_after_the_first_message_is_a_complete(worker: Worker) -> None:
    call = worker.rpc.Generate(generate_request("a"))
    await worker.scheduler.receive()
    await worker.scheduler.step(tokens("a", [10], 1))
    await read(call)
    await worker.scheduler.step(
        finish("a", [], 1, type="abort", message="out of memory", status_code=500)
    )
    done = (await read(call)).complete
    assert (done.finish_reason, done.abort_message, done.abort_status_code) == (
        "abort", "out of memory", 500,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"sampling": {"temperature": -1.0}}, "sampling_params.temperature"),
        ({"sampling": {"temperature": float("nan")}}, "sampling_params.temperature"),
        ({"sampling": {"top_p": 1.5}}, "sampling_params.top_p"),
        ({"sampling": {"top_k": -2}}, "sampling_params.top_k"),
        ({"sampling": {"min_new_tokens": 9}}, "sampling_params.min_new_tokens"),
        ({"sampling": {"n": 10_000}}, "sampling_params.n"),
        ({"sampling": {"stop": ["x"] * 33}}, "sampling_params.stop"),
        ({"sampling": {"stop_token_ids": [VOCAB_SIZE]}}, "sampling_params.stop_token_ids"),
        ({"sampling": {"logit_bias": {"abc": 1.0}}}, "sampling_params.logit_bias"),
        ({"sampling": {"logit_bias": {"5000": 1.0}}}, "sampling_params.logit_bias"),
        ({"sampling": {"stream_interval": 0}}, "sampling_params.stream_interval"),
        ({"logprob_start_len": 4}, "logprob_start_len"),
        ({"top_logprobs_num": -1}, "top_logprobs_num"),
        ({"lora_id": "x"}, "--enable-lora"),
        ({"return_hidden_states": True}, "return_hidden_states"),
        ({"data_parallel_rank": 1}, "data_parallel_rank"),
        ({"request_id": ""}, "request_id"),
    ],
)
async def test_wrong_fields_are_named(worker: Worker, fields: dict, named: str) -> None:
    request_id = fields.pop("request_id", "a")
    code, text = await status_of(worker.rpc.Generate(generate_request(request_id, **fields)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert named in text


@pytest.mark.parametrize(
    ("fields", "sampling", "counts"),
    [
        ({"top_logprobs_num": VOCAB_SIZE}, {"n": 100, "max_new_tokens": 21}, (1000, 2100)),
        ({"token_ids_logprob": [1] * 100_000}, {"max_new_tokens": 21}, (100_000, 21)),
        ({"top_logprobs_num": 900, "token_ids_logprob": [1] * 100, "logprob_start_len": 2},
         {"n": 100, "max_new_tokens": 20}, (1000, 2100)),
        ({"top_logprobs_num": VOCAB_SIZE}, {"n": 100, "max_new_tokens": 10_000}, (1000, 6100)),
    ],
)  # fmt: skip
async def test_alternatives_are_bounded(
    worker: Worker, fields: dict[str, Any], sampling: dict[str, int], counts: tuple[int, int]
) -> None:
    request = generate_request("a", return_logprob=True, sampling=sampling)
    ids = fields.get("token_ids_logprob", [])
    request.token_ids_logprob.extend(ids)
    for name in ("top_logprobs_num", "logprob_start_len"):
        setattr(request, name, fields.get(name, getattr(request, name)))
    code, text = await status_of(worker.rpc.Generate(request))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    alternatives, positions = counts
    assert f"{alternatives} alternatives at {positions} positions" in text
    for part in ("top_logprobs_num", "token_ids_logprob", str(alternatives * positions), "2000000"):
        assert part in text


async def test_as_many_alternatives_as_allowed_are_taken(worker: Worker) -> None:
    fields = {"top_logprobs_num": VOCAB_SIZE, "return_logprob": True}
    worker.rpc.Generate(generate_request("a", sampling={"n": 100, "max_new_tokens": 20}, **fields))
    assert len(await worker.scheduler.receive_many(100)) == 100


async def test_what_changes_nothing_is_tolerated(worker: Worker) -> None:
    """Published gateways always send the one, and clients may send the other."""
    sampling = {"spaces_between_special_tokens": False}
    worker.rpc.Generate(generate_request("a", sampling=sampling, priority=5))
    assert (await worker.scheduler.receive()).rid == "a"


@pytest.mark.parametrize("ids", [[], [VOCAB_SIZE], [1] * CONTEXT_LEN])
async def test_wrong_prompts_are_refused(worker: Worker, ids: list[int]) -> None:
    request = generate_request("a")
    del request.tokenized.input_ids[:]
    request.tokenized.input_ids.extend(ids)
    code, text = await status_of(worker.rpc.Generate(request))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "input" in text


async def test_a_running_id_is_taken_and_free_again_afterwards(worker: Worker) -> None:
    first = worker.rpc.Generate(generate_request("same"))
    await worker.scheduler.receive()
    code, text = await status_of(worker.rpc.Generate(generate_request("same")))
    assert code is grpc.StatusCode.ALREADY_EXISTS
    assert "same" in text
    await worker.scheduler.step(finish("same", [1], 1))
    await asyncio.wait_for(read_all(first), GUARD)
    again = worker.rpc.Generate(generate_request("same"))
    assert (await worker.scheduler.receive()).rid == "same"
    again.cancel()


async def test_a_large_prompt_passes(worker: Worker) -> None:
    """Far above gRPC's usual 4 MiB; refused by the engine for its length, not by the transport."""
    request = generate_request("a")
    request.tokenized.input_ids.extend([999] * 3_000_000)
    code, text = await status_of(worker.rpc.Generate(request))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "3000003 tokens" in text


# ------------------------------------------------------------------ the end from outside


@pytest.mark.parametrize("phase", ["queued", "running"])
async def test_cancelled_rpc_aborts_in_every_phase(worker: Worker, phase: str) -> None:
    call = worker.rpc.Generate(generate_request("a", sampling={"n": 2}))
    rids = [entry.rid for entry in await worker.scheduler.receive_many(2)]
    if phase == "running":
        await worker.scheduler.step(tokens(rids[0], [1], 1))
        await read(call)
    call.cancel()
    abort = await worker.scheduler.receive()
    assert isinstance(abort, AbortInput)
    assert sorted(abort.rids) == rids
    assert worker.client.num_running == 0


async def test_only_unfinished_answers_are_aborted(worker: Worker) -> None:
    call = worker.rpc.Generate(generate_request("a", sampling={"n": 2}))
    rids = [entry.rid for entry in await worker.scheduler.receive_many(2)]
    await worker.scheduler.step(finish(rids[0], [1], 1))
    await read(call)
    call.cancel()
    assert (await worker.scheduler.receive()).rids == [rids[1]]


async def test_finished_requests_are_not_aborted(worker: Worker) -> None:
    call = worker.rpc.Generate(generate_request("a"))
    await worker.scheduler.receive()
    await worker.scheduler.step(finish("a", [1], 1))
    await asyncio.wait_for(read_all(call), GUARD)
    worker.rpc.Generate(generate_request("b"))
    assert (await worker.scheduler.receive()).rid == "b"


async def test_abort_takes_the_exact_id_and_all_its_answers(worker: Worker) -> None:
    worker.rpc.Generate(generate_request("job-1", sampling={"n": 2}))
    worker.rpc.Generate(generate_request("job-10"))
    inputs = await worker.scheduler.receive_many(3)
    expected = sorted(entry.rid for entry in inputs if entry.rid != "job-10")
    request = wire.scheduler("AbortRequest")
    reply = await worker.rpc.Abort(request(request_id="job-1", reason="stop it"))
    assert reply.success
    abort = await worker.scheduler.receive()
    assert sorted(abort.rids) == expected
    assert abort.message == "stop it"
    assert (await worker.rpc.Abort(request(request_id="nobody"))).success


async def test_aborted_request_ends_with_a_complete(worker: Worker) -> None:
    call = worker.rpc.Generate(generate_request("a"))
    await worker.scheduler.receive()
    await worker.rpc.Abort(wire.scheduler("AbortRequest")(request_id="a"))
    await worker.scheduler.receive()
    await worker.scheduler.step(finish("a", [], 0, type="abort", message="Aborted by the client"))
    (message,) = await asyncio.wait_for(read_all(call), GUARD)
    assert message.complete.finish_reason == "abort"


async def test_abort_without_a_scheduler_says_so(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(value: object) -> None:
        raise SchedulerUnavailable("the scheduler process is not connected")

    call = worker.rpc.Generate(generate_request("a"))
    await worker.scheduler.receive()
    monkeypatch.setattr(worker.client, "_send", refuse)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await worker.rpc.Abort(wire.scheduler("AbortRequest")(request_id="a"))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "not connected" in caught.value.details()
    monkeypatch.undo()
    call.cancel()


async def test_deadline_ends_the_request(worker: Worker) -> None:
    call = worker.rpc.Generate(generate_request("a"), timeout=0.2)
    got = await worker.scheduler.receive()
    assert got.deadline is not None
    assert (await status_of(call))[0] is grpc.StatusCode.DEADLINE_EXCEEDED
    assert (await worker.scheduler.receive()).rids == ["a"]


async def test_dead_scheduler_ends_running_requests(worker: Worker) -> None:
    call = worker.rpc.Generate(generate_request("a"))
    await worker.scheduler.receive()
    await worker.scheduler.step(tokens("a", [1], 1))
    await read(call)
    worker.client.fail("The scheduler process (pid 1) was killed by SIGKILL")
    code, text = await status_of(call)
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "SIGKILL" in text
    code, _ = await status_of(worker.rpc.Generate(generate_request("b")))
    assert code is grpc.StatusCode.UNAVAILABLE


async def test_nothing_is_taken_before_ready_and_while_draining(loading: Worker) -> None:
    code, _ = await status_of(loading.rpc.Generate(generate_request("a")))
    assert code is grpc.StatusCode.UNAVAILABLE
    await loading.become_ready()
    loading.client.drain()
    code, text = await status_of(loading.rpc.Generate(generate_request("a")))
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "shutting down" in text
