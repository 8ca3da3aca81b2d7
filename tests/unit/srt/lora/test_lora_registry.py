"""Adapters by name, and who uses them."""

import asyncio

import pytest

from sglang.srt.lora.lora_registry import LoRARef, LoRARegistry


def ref(name: str, **options: bool) -> LoRARef:
    return LoRARef(lora_name=name, lora_path=f"/adapters/{name}", **options)


def test_ids_are_never_used_again_unless_they_have_to_be_agreed_on() -> None:
    assert ref("a").lora_id != ref("a").lora_id
    assert LoRARef.deterministic_id("a", "p") == LoRARef.deterministic_id("a", "p")
    assert LoRARef.deterministic_id("a", "bp") != LoRARef.deterministic_id("ab", "p")


async def test_names_become_ids_and_none_stays_none() -> None:
    a, b = ref("a"), ref("b")
    registry = LoRARegistry([a, b])
    assert await registry.acquire("b") == b.lora_id
    assert await registry.acquire(["a", None, "b"]) == [a.lora_id, None, b.lora_id]
    assert registry.num_registered_loras == 2


async def test_an_unknown_name_acquires_nothing() -> None:
    a = ref("a")
    registry = LoRARegistry([a])
    with pytest.raises(ValueError, match=r"has never been loaded: x\. Loaded adapters: a\."):
        await registry.acquire(["a", "x"])
    await registry.unregister("a")
    await registry.wait_for_unload(a.lora_id)


async def test_a_name_is_taken_once() -> None:
    registry = LoRARegistry([ref("a")])
    with pytest.raises(ValueError, match="'a' is already loaded, from /adapters/a"):
        await registry.register(ref("a"))


async def test_unloading_refuses_new_requests_and_waits_for_the_old_ones() -> None:
    registry = LoRARegistry([ref("a")])
    ids = await registry.acquire(["a", "a"])
    lora_id = await registry.unregister("a")
    with pytest.raises(ValueError, match="never been loaded: a"):
        await registry.acquire("a")
    waiting = asyncio.ensure_future(registry.wait_for_unload(lora_id))
    await registry.release(ids[0])
    await asyncio.sleep(0)
    assert not waiting.done()
    await registry.release(ids[1])
    await asyncio.wait_for(waiting, 5)


async def test_unregistering_what_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'a' is not loaded\. Loaded adapters: none\."):
        await LoRARegistry().unregister("a")


async def test_the_one_unused_for_longest_comes_first() -> None:
    registry = LoRARegistry([ref("a", pinned=True), ref("b"), ref("c")])
    assert await registry.lru_lora_name() == "a"
    assert await registry.lru_lora_name(exclude_pinned=True) == "b"
    await registry.release(await registry.acquire("b"))
    assert await registry.lru_lora_name(exclude_pinned=True) == "c"
    assert await LoRARegistry().lru_lora_name() is None


async def test_unregistered_names_are_told() -> None:
    registry = LoRARegistry([ref("a")])
    assert await registry.get_unregistered_loras({"a", "x"}) == {"x"}
    assert set(registry.get_all_adapters()) == {"a"}
