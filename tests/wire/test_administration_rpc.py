"""The rpcs that tell about a worker and operate it."""

import asyncio
import hashlib
import io
import json
import zipfile
from typing import Any

import grpc
import pytest

from sglang.srt.core.messages import ControlInput, ControlOutput, LoadProgress
from sglang.srt.entrypoints import wire
from sglang.srt.entrypoints.scheduler_client import WorkerState
from tests.wire.fake_scheduler import GUARD, Worker, finish, generate_request, serve, tokens


def request(name: str, **fields: Any) -> Any:
    return wire.scheduler(f"{name}Request")(**fields)


async def code_of(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(call, GUARD)
    return caught.value.code(), caught.value.details()


async def control(worker: Worker, name: str, args: dict | None = None) -> Any:
    text = "" if args is None else json.dumps(args)
    reply = await worker.engine.Control(wire.engine("ControlRequest")(name=name, json=text))
    return json.loads(reply.json)


# ------------------------------------------------------------------ health


async def test_health_is_unavailable_until_ready_and_says_where_loading_is(loading: Worker) -> None:
    await loading.scheduler.send(
        LoadProgress(phase="loading weights", done_bytes=45_000_000, total_bytes=98_000_000)
    )
    while "98" not in loading.client.reason:
        await loading.scheduler.step()
    code, text = await code_of(loading.rpc.HealthCheck(request("HealthCheck")))
    assert code is grpc.StatusCode.UNAVAILABLE
    assert text == "loading weights: 45 of 98 MB"
    await loading.become_ready()
    reply = await loading.rpc.HealthCheck(request("HealthCheck"))
    assert reply.healthy


async def test_health_is_unavailable_while_draining_and_after_death(worker: Worker) -> None:
    worker.client.drain()
    code, text = await code_of(worker.rpc.HealthCheck(request("HealthCheck")))
    assert (code, "shutting down" in text) == (grpc.StatusCode.UNAVAILABLE, True)
    worker.client.fail("gone")
    assert (await code_of(worker.rpc.HealthCheck(request("HealthCheck"))))[1] == "gone"


async def test_other_protocol_version_of_the_scheduler_fails_the_worker(loading: Worker) -> None:
    from tests.wire.fake_scheduler import ready_message

    ready = ready_message(loading.folder)
    ready.protocol_version = 99
    await loading.scheduler.send(ready)
    while loading.client.state is WorkerState.LOADING:
        await loading.scheduler.step()
    assert "99" in loading.client.reason


# ------------------------------------------------------------------ descriptions


async def test_model_info(worker: Worker) -> None:
    info = await worker.rpc.GetModelInfo(request("GetModelInfo"))
    assert (info.served_model_name, info.model_path) == ("tiny", "dummy")
    assert info.tokenizer_path == str(worker.folder)
    assert (info.max_context_length, info.max_req_input_len, info.vocab_size) == (64, 63, 1000)
    assert (list(info.architectures), info.model_type) == (["LlamaForCausalLM"], "llama")
    assert (list(info.eos_token_ids), info.bos_token_id, info.pad_token_id) == ([2], 1, -1)
    assert info.is_generation and info.weight_version == "default"
    assert json.loads(info.default_sampling_params_json) == {"temperature": 0.5, "top_p": 0.75}


async def test_sampling_defaults_follow_the_options() -> None:
    options = {"sampling_defaults": "openai", "preferred_sampling_params": '{"top_k": 5}'}
    async with serve(**options) as worker:
        await worker.become_ready()
        info = await worker.rpc.GetModelInfo(request("GetModelInfo"))
    assert json.loads(info.default_sampling_params_json) == {"top_k": 5}
    assert json.loads(info.preferred_sampling_params) == {"top_k": 5}


async def test_server_info_agrees_with_model_info_and_hides_keys() -> None:
    async with serve(api_key="secret-key") as worker:
        await worker.become_ready()
        info = await worker.rpc.GetServerInfo(request("GetServerInfo"))
        flat = await control(worker, "server_info")
    for args in (dict(info.server_args), flat):
        assert args["context_length"] == 64
        assert args["max_running_requests"] == 8
        assert (args["page_size"], args["dp_size"]) == (4, 1)
        assert "api_key" not in args
        assert args["grammar_backend_source"].startswith("sglang.srt.constrained.")
    assert "secret-key" not in json.dumps(flat)
    assert info.max_total_num_tokens == 512
    assert info.scheduler_info["status"] == "ready" == flat["status"]


async def test_server_info_tells_the_state(worker: Worker) -> None:
    assert (await control(worker, "server_info"))["status"] == "ready"
    worker.client.drain()
    assert (await control(worker, "server_info"))["status"] == "draining"
    worker.client.fail("gone")
    assert (await control(worker, "server_info"))["status"] == "failed"


async def test_server_info_shows_live_counters(worker: Worker) -> None:
    load = worker.scheduler.load
    load.prompt_tokens_total, load.cached_tokens_total, load.num_evictable_tokens = 40, 10, 7
    await worker.scheduler.step()
    while worker.client.load.prompt_tokens_total == 0:
        await worker.rpc.HealthCheck(request("HealthCheck"))
    (state,) = (await control(worker, "server_info"))["internal_states"]
    assert state["cache_hit_rate"] == 0.25
    assert (state["cached_tokens_total"], state["prompt_tokens_total"]) == (10, 40)
    assert state["cache_evictable_tokens"] == 7
    assert state["num_used_tokens"] == 0  # zeros are there too


async def test_everything_about_the_model_is_unavailable_while_loading(loading: Worker) -> None:
    for call in (
        loading.rpc.GetModelInfo(request("GetModelInfo")),
        loading.rpc.GetServerInfo(request("GetServerInfo")),
        loading.engine.Control(wire.engine("ControlRequest")(name="server_info")),
    ):
        assert (await code_of(call))[0] is grpc.StatusCode.UNAVAILABLE


async def test_loads_and_their_sections(worker: Worker) -> None:
    worker.scheduler.load.num_running_reqs = 2
    worker.scheduler.load.num_waiting_reqs = 3
    worker.scheduler.load.num_grammar_queue_reqs = 1
    worker.scheduler.load.num_retracted_reqs = 2
    worker.scheduler.load.num_paused_reqs = 5
    await worker.scheduler.step()
    while worker.client.load.num_running_reqs == 0:
        await worker.rpc.HealthCheck(request("HealthCheck"))
    plain = await worker.rpc.GetLoads(request("GetLoads"))
    (load,) = plain.loads
    assert (load.num_running_reqs, load.num_waiting_reqs, load.num_total_reqs) == (2, 3, 5)
    assert load.utilization == 0.25 and plain.dp_rank_count == 1
    assert not load.HasField("memory") and plain.aggregate.total_reqs == 5
    wanted = ["core", "disagg", "queues", "memory"]
    (full,) = (await worker.rpc.GetLoads(request("GetLoads", include=wanted))).loads
    queues = full.queues
    assert (queues.waiting, queues.grammar, queues.retracted, queues.paused) == (3, 1, 2, 5)
    assert full.memory.token_capacity == 512
    assert full.memory.kv_cache_gb == pytest.approx(512e3 / 1e9)
    code, text = await code_of(worker.rpc.GetLoads(request("GetLoads", include=["nope"])))
    assert code is grpc.StatusCode.INVALID_ARGUMENT and "queues" in text
    code, _ = await code_of(worker.rpc.GetLoads(request("GetLoads", dp_rank=1)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT


async def read_bundle(worker: Worker) -> tuple[list[Any], bytes]:
    call = worker.rpc.GetTokenizer(wire.common("GetTokenizerRequest")())
    chunks = [chunk async for chunk in call]
    return chunks, b"".join(chunk.data for chunk in chunks)


async def test_tokenizer_bundle_is_a_zip_with_its_digest(worker: Worker) -> None:
    import os

    (worker.folder / "tokenizer.json").write_bytes(os.urandom(600_000))
    chunks, data = await read_bundle(worker)
    assert len(chunks) == 3
    assert max(len(chunk.data) for chunk in chunks) <= 256 * 1024
    assert [chunk.sha256 for chunk in chunks[:-1]] == ["", ""]
    assert chunks[-1].sha256 == hashlib.sha256(data).hexdigest()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert sorted(archive.namelist()) == [
            "chat_template.jinja", "config.json", "tokenizer.json", "tokenizer_config.json",
        ]  # fmt: skip
    assert (await read_bundle(worker))[1] == data


async def test_a_tokenizer_that_cannot_be_packed_is_tried_again(worker: Worker) -> None:
    hidden = (worker.folder / "tokenizer.json").rename(worker.folder / "hidden")
    code, text = await code_of(read_bundle(worker))
    assert (code, "tokenizer.json" in text) == (grpc.StatusCode.INTERNAL, True)
    hidden.rename(worker.folder / "tokenizer.json")
    assert (await read_bundle(worker))[1]


async def test_chat_template_option_replaces_the_models_own(tmp_path) -> None:
    template = tmp_path / "mine.jinja"
    template.write_text("mine")
    async with serve(chat_template=str(template)) as worker:
        await worker.become_ready()
        _, data = await read_bundle(worker)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.read("chat_template.jinja") == b"mine"


# ------------------------------------------------------------------ operations


async def test_flush_cache_reports_what_the_scheduler_says(worker: Worker) -> None:
    call = asyncio.ensure_future(_flush(worker))
    got = await worker.scheduler.receive()
    assert isinstance(got, ControlInput) and got.name == "flush_cache"
    await worker.scheduler.send(
        ControlOutput(id=got.id, result={"success": False, "message": "2 requests run"})
    )
    reply = await asyncio.wait_for(call, GUARD)
    assert (reply.success, reply.message) == (False, "2 requests run")


async def _flush(worker: Worker, timeout: float = 0) -> Any:
    return await worker.rpc.FlushCache(wire.common("FlushCacheRequest")(timeout_s=timeout))


async def test_flush_cache_waits_for_idleness(worker: Worker) -> None:
    worker.rpc.Generate(generate_request("a"))
    await worker.scheduler.receive()
    call = asyncio.ensure_future(_flush(worker, GUARD))
    await worker.rpc.HealthCheck(request("HealthCheck"))
    await worker.scheduler.step(finish("a", [1], 1))
    got = await worker.scheduler.receive()
    assert isinstance(got, ControlInput) and worker.client.num_running == 0
    await worker.scheduler.send(
        ControlOutput(id=got.id, result={"success": True, "message": "flushed"})
    )
    assert (await asyncio.wait_for(call, GUARD)).success


async def test_control_refuses_unknown_names_and_arguments(worker: Worker) -> None:
    cases = {
        ("nope", "{}"): "server_info",
        ("server_info", '{"x": 1}'): "x",
        ("abort", "{}"): "rid",
        ("flush_cache", '{"timeout_s": -1}'): "timeout_s",
        ("flush_cache", '{"timeout_s": "soon"}'): "timeout_s",
        ("loads", '{"include": "all"}'): "include",
        ("loads", "[1]"): "object",
        ("loads", "{"): "",
    }
    for (name, text), named in cases.items():
        call = worker.engine.Control(wire.engine("ControlRequest")(name=name, json=text))
        code, details = await code_of(call)
        assert code is grpc.StatusCode.INVALID_ARGUMENT, name
        assert named in details


@pytest.mark.parametrize(
    ("name", "args", "sent"),
    [
        ("open_session", {"capacity_of_str_len": 9, "session_id": "s", "timeout": None},
         {"capacity_of_str_len": 9, "session_id": "s"}),
        ("close_session", {"session_id": "s"}, {"session_id": "s"}),
        ("pause_generation", {"mode": "in_place"}, {"mode": "in_place"}),
        ("continue_generation", {}, {}),
        ("hicache_storage_attach", {"hicache_storage_backend": "file"},
         {"hicache_storage_backend": "file"}),
        ("hicache_storage_status", {}, {}),
        ("hicache_storage_detach", {}, {}),
        ("hicache_storage_clear", {}, {}),
    ],
)  # fmt: skip
async def test_operations_of_the_scheduler_are_handed_on(
    worker: Worker, name: str, args: dict, sent: dict
) -> None:
    call = asyncio.create_task(control(worker, name, args))
    got = await worker.scheduler.receive()
    assert (got.name, got.args) == (name, sent)
    await worker.scheduler.send(ControlOutput(id=got.id, result={"said": name}))
    assert await asyncio.wait_for(call, GUARD) == {"said": name}
    refused = wire.engine("ControlRequest")(name=name, json='{"other": 1}')
    code, text = await code_of(worker.engine.Control(refused))
    assert code is grpc.StatusCode.INVALID_ARGUMENT and "'other'" in text


async def test_what_the_scheduler_refuses_is_an_invalid_argument(worker: Worker) -> None:
    ask = wire.engine("ControlRequest")(name="open_session", json='{"capacity_of_str_len": 1}')
    call = asyncio.create_task(code_of(worker.engine.Control(ask)))
    got = await worker.scheduler.receive()
    await worker.scheduler.send(ControlOutput(id=got.id, error="session 's' exists"))
    assert await call == (grpc.StatusCode.INVALID_ARGUMENT, "session 's' exists")


async def test_control_of_another_version_is_refused(worker: Worker) -> None:
    ask = wire.engine("ControlRequest")(name="loads", protocol_version=7)
    code, text = await code_of(worker.engine.Control(ask))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "7" in text and "1" in text
    reply = await worker.engine.Control(wire.engine("ControlRequest")(name="loads"))
    assert reply.protocol_version == 1


async def test_control_aborts_one_or_all(worker: Worker) -> None:
    worker.rpc.Generate(generate_request("a"))
    worker.rpc.Generate(generate_request("b"))
    await worker.scheduler.receive_many(2)
    assert await control(worker, "abort", {"rid": "a"}) == {"aborted": 1}
    assert (await worker.scheduler.receive()).rids == ["a"]
    assert await control(worker, "abort", {"rid": "nobody"}) == {"aborted": 0}
    assert await control(worker, "abort", {"all": True}) == {"aborted": 2}
    assert (await worker.scheduler.receive()).all is True


async def test_metrics_text_has_the_documented_series() -> None:
    async with serve(served_model_name="tiny", enable_metrics=True) as worker:
        await worker.become_ready()
        call = worker.rpc.Generate(generate_request("a"))
        await worker.scheduler.receive()
        worker.scheduler.load.prompt_tokens_total = 3
        await worker.scheduler.step(tokens("a", [1], 1))
        await call.read()
        await worker.scheduler.step(finish("a", [2], 2))
        assert (await call.read()) and (await call.read())
        text = (await control(worker, "metrics"))["text"]
    labels = 'dp_rank="0",engine_type="unified",model_name="tiny",pp_rank="0",tp_rank="0"'
    assert f"sglang:prompt_tokens_total{{{labels}}} 3.0" in text
    assert f"sglang:num_pages{{{labels}}} 128.0" in text
    assert f"sglang:time_to_first_token_seconds_count{{{labels}}} 1.0" in text
    assert f"sglang:inter_token_latency_seconds_count{{{labels}}} 1.0" in text
    assert f"sglang:e2e_request_latency_seconds_count{{{labels}}} 1.0" in text


@pytest.mark.parametrize(
    ("method", "ask"),
    [
        ("StartProfile", lambda: wire.common("StartProfileRequest")()),
        ("LoadLoRAAdapter", lambda: request("LoadLoRAAdapter")),
    ],
)
async def test_what_is_missing_is_unimplemented(worker: Worker, method: str, ask: Any) -> None:
    code, text = await code_of(getattr(worker.rpc, method)(ask()))
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert method in text
