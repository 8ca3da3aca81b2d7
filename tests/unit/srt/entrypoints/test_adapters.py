"""Adapters come and go by name while requests use them."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from sglang.srt.arg_groups.lora import LoRAArgs
from sglang.srt.core.messages import GenerateInput
from sglang.srt.core.sampling_params import SamplingParams
from sglang.srt.entrypoints.adapters import Adapters
from sglang.srt.entrypoints.answer_inputs import InvalidRequest

GUARD = 5.0  # seconds


class PlayedScheduler:
    """Loads every path but `/broken`."""

    def __init__(self) -> None:
        self.loaded: dict[str, Any] = {}
        self.most = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def control(self, name: str, args: Mapping[str, Any]) -> dict[str, object]:
        await self.gate.wait()
        if name == "unload_lora":
            del self.loaded[args["lora_id"]]
        elif args["lora_path"] == "/broken":
            return {"success": False, "error_message": "it is broken"}
        else:
            self.loaded[args["lora_id"]] = dict(args)
            self.most = max(self.most, len(self.loaded))
        return {"success": True, "error_message": None}

    @property
    def names(self) -> list[str]:
        return sorted(entry["lora_name"] for entry in self.loaded.values())


@pytest.fixture
def scheduler() -> PlayedScheduler:
    return PlayedScheduler()


@pytest.fixture
def adapters(scheduler: PlayedScheduler) -> Adapters:
    return Adapters(LoRAArgs(enable_lora=True, max_loaded_loras=2), scheduler.control)


def wish(*names: str | None) -> list[GenerateInput]:
    return [
        GenerateInput(rid=str(i), input_ids=[1], sampling=SamplingParams(), lora_name=name)
        for i, name in enumerate(names)
    ]


async def use(adapters: Adapters, *names: str | None) -> list[str | None]:
    inputs = wish(*names)
    async with adapters.used_by(inputs):
        return [entry.lora_id for entry in inputs]


async def test_a_loaded_adapter_is_used_by_its_id(
    adapters: Adapters, scheduler: PlayedScheduler
) -> None:
    assert await adapters.load("a", "/p") == {
        "success": True, "error_message": None, "loaded_adapters": {"a": "/p"},
    }  # fmt: skip
    ids = await use(adapters, "a", None)
    assert ids == [*scheduler.loaded, None]


async def test_an_unknown_adapter_is_refused(adapters: Adapters) -> None:
    await adapters.load("a", "/p")
    with pytest.raises(
        InvalidRequest, match=r"Got LoRA adapter that has never been loaded: x\. .* adapters: a\."
    ):
        await use(adapters, "x")


async def test_without_adapters_every_name_is_refused(scheduler: PlayedScheduler) -> None:
    adapters = Adapters(LoRAArgs(), scheduler.control)
    with pytest.raises(
        InvalidRequest,
        match="LoRA adapter 'a' was requested, but LoRA is not enabled; .*--enable-lora",
    ):
        await use(adapters, "a")
    assert not (await adapters.load("a", "/p"))["success"]
    assert not (await adapters.unload("a"))["success"]
    assert await use(adapters, None) == [None]


async def test_a_name_is_taken_once_and_a_path_may_have_two(
    adapters: Adapters, scheduler: PlayedScheduler
) -> None:
    await adapters.load("a", "/p")
    await adapters.load("b", "/p")
    second = await adapters.load("b", "/q")
    assert not second["success"] and "already loaded, from /p" in second["error_message"]
    assert (await adapters.unload("a"))["loaded_adapters"] == {"b": "/p"}
    assert scheduler.names == ["b"]
    assert await use(adapters, "b") == list(scheduler.loaded)


async def test_a_broken_adapter_leaves_no_trace(
    adapters: Adapters, scheduler: PlayedScheduler
) -> None:
    reply = await adapters.load("a", "/broken")
    assert reply == {"success": False, "error_message": "it is broken", "loaded_adapters": {}}
    with pytest.raises(InvalidRequest, match="never been loaded: a"):
        await use(adapters, "a")
    assert (await adapters.load("a", "/p"))["success"]


async def test_unloading_waits_for_running_requests_and_refuses_new_ones(
    adapters: Adapters, scheduler: PlayedScheduler
) -> None:
    await adapters.load("a", "/p")
    async with adapters.used_by(wish("a")):
        unloading = asyncio.ensure_future(adapters.unload("a"))
        while "a" in adapters.paths:
            await asyncio.sleep(0)
        with pytest.raises(InvalidRequest, match="never been loaded: a"):
            await use(adapters, "a")
        assert scheduler.names == ["a"] and not unloading.done()
    reply = await asyncio.wait_for(unloading, GUARD)
    assert reply["success"] and scheduler.names == []


async def test_a_caller_that_is_gone_does_not_stop_an_unloading(
    adapters: Adapters, scheduler: PlayedScheduler
) -> None:
    await adapters.load("a", "/p")
    async with adapters.used_by(wish("a")):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(adapters.unload("a"), 0.01)
    assert (await asyncio.wait_for(adapters.load("a", "/q"), GUARD))["success"]
    assert scheduler.names == ["a"]


async def test_the_one_unused_for_longest_makes_room_and_comes_back(
    adapters: Adapters, scheduler: PlayedScheduler
) -> None:
    for name in ("a", "b"):
        await adapters.load(name, f"/{name}")
    old = (await use(adapters, "a"))[0]
    reply = await adapters.load("c", "/c")
    assert set(reply["loaded_adapters"]) == {"a", "b", "c"}
    assert scheduler.names == ["a", "c"]
    await use(adapters, "b")
    assert scheduler.names == ["b", "c"]
    assert (await use(adapters, "a"))[0] != old
    assert scheduler.most == 2


async def test_what_made_room_can_be_unloaded_for_good(
    adapters: Adapters, scheduler: PlayedScheduler
) -> None:
    for name in ("a", "b", "c"):
        await adapters.load(name, f"/{name}")
    assert (await adapters.unload("a"))["loaded_adapters"] == {"b": "/b", "c": "/c"}
    with pytest.raises(InvalidRequest, match="never been loaded: a"):
        await use(adapters, "a")


async def test_pinned_adapters_make_no_room(adapters: Adapters, scheduler: PlayedScheduler) -> None:
    for name in ("a", "b"):
        await adapters.load(name, f"/{name}", pinned=True)
    reply = await adapters.load("c", "/c")
    assert "all loaded adapters are pinned" in reply["error_message"]
    assert scheduler.names == ["a", "b"]


async def test_many_versions_leave_nothing_behind(
    adapters: Adapters, scheduler: PlayedScheduler
) -> None:
    for number in range(50):
        assert (await adapters.load(f"v{number}", "/p"))["success"]
        await use(adapters, f"v{number}")
        assert (await adapters.unload(f"v{number}"))["success"]
    assert not scheduler.loaded and not adapters.paths and scheduler.most == 1


async def test_many_requests_for_more_adapters_than_fit_are_all_served(
    adapters: Adapters, scheduler: PlayedScheduler
) -> None:
    for name in "abc":
        await adapters.load(name, f"/{name}")

    async def request(name: str) -> None:
        inputs = wish(name)
        async with adapters.used_by(inputs):
            await asyncio.sleep(0)
            assert scheduler.loaded[str(inputs[0].lora_id)]["lora_name"] == name

    requests = [request("abc"[number % 3]) for number in range(12)]
    await asyncio.wait_for(asyncio.gather(*requests), GUARD)
    assert scheduler.most == 2
