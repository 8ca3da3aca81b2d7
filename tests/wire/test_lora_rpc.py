"""Adapters over the wire: named by requests, loaded and unloaded by operations."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from sglang.srt.core.messages import ControlInput, ControlOutput, GenerateInput
from sglang.srt.entrypoints import wire
from tests.wire.fake_scheduler import GUARD, Worker, finish, generate_request, serve


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    async with serve(
        enable_lora=True, max_lora_rank=8, lora_target_modules=["all"], max_loras_per_batch=2
    ) as made:
        await made.become_ready()
        yield made


async def operate(worker: Worker, name: str, **args: Any) -> Any:
    request = wire.engine("ControlRequest")(name=name, json=json.dumps(args))
    return json.loads((await worker.engine.Control(request)).json)


async def answer_control(worker: Worker, **result: Any) -> ControlInput:
    """Plays the scheduler for one operation."""
    received: ControlInput = await worker.scheduler.receive()
    await worker.scheduler.send(ControlOutput(id=received.id, result=result))
    return received


async def load(worker: Worker, name: str, path: str) -> Any:
    reply = asyncio.ensure_future(
        operate(worker, "load_lora_adapter", lora_name=name, lora_path=path)
    )
    received = await answer_control(worker, success=True, error_message=None)
    assert received.name == "load_lora"
    return await asyncio.wait_for(reply, GUARD), received.args["lora_id"]


async def test_a_request_reaches_the_scheduler_with_the_adapters_own_id(worker: Worker) -> None:
    reply, lora_id = await load(worker, "a", "/p")
    assert reply == {"success": True, "error_message": None, "loaded_adapters": {"a": "/p"}}
    assert await operate(worker, "lora_adapters") == {"loaded_adapters": {"a": "/p"}}
    call = worker.rpc.Generate(generate_request("r", lora_id="a"))
    first: Any = asyncio.ensure_future(call.read())
    received = await worker.scheduler.receive()
    assert isinstance(received, GenerateInput)
    assert (received.lora_name, received.lora_id) == ("a", lora_id)
    unloading = asyncio.ensure_future(operate(worker, "unload_lora_adapter", lora_name="a"))
    await worker.scheduler.step(finish("r", [1], 1))
    await asyncio.wait_for(first, GUARD)
    told = await answer_control(worker, success=True, error_message=None)
    assert (told.name, told.args) == ("unload_lora", {"lora_id": lora_id})
    assert (await asyncio.wait_for(unloading, GUARD))["loaded_adapters"] == {}


async def test_places_on_the_device_are_part_of_the_load(worker: Worker) -> None:
    load = worker.scheduler.load
    load.lora_slots_used, load.lora_slots_total = 1, 2
    await worker.scheduler.step()
    request = wire.scheduler("GetLoadsRequest")(include=["lora"])
    while (await worker.rpc.GetLoads(request)).loads[0].lora.slots_total == 0:
        await asyncio.sleep(0)
    (record,) = (await worker.rpc.GetLoads(request)).loads
    told = record.lora
    assert (told.slots_used, told.slots_total, told.utilization) == (1, 2, 0.5)


async def test_an_unknown_adapter_is_an_invalid_argument(worker: Worker) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(
            worker.rpc.Generate(generate_request("r", lora_id="x")).read(), GUARD
        )
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "Got LoRA adapter that has never been loaded: x" in str(caught.value.details())


@pytest.mark.parametrize(
    ("name", "args", "named"),
    [
        ("load_lora_adapter", {"lora_name": "a"}, "lora_path"),
        ("load_lora_adapter", {"lora_name": 3, "lora_path": "p"}, "lora_name"),
        ("load_lora_adapter", {"lora_name": "a", "lora_path": "p", "pinned": 1}, "pinned"),
        ("load_lora_adapter", {"lora_name": "a", "lora_path": "p", "r": 1}, "'r'"),
        ("unload_lora_adapter", {}, "lora_name"),
    ],
)
async def test_wrong_arguments_are_named(
    worker: Worker, name: str, args: dict[str, Any], named: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await operate(worker, name, **args)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert named in str(caught.value.details())
