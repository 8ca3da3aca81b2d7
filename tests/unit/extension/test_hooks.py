"""Four kinds of hooks on one callable, and the order in which they run."""

import asyncio
import inspect
import logging
from typing import Any

import pytest

from sglang.extension.hooks import Hook, HookChain, HookSource, HookType

TARGET = "package.module.add"


def add(a: int, b: int = 1) -> int:
    """Adds."""
    return a + b


async def slow_add(a: int, b: int = 1) -> int:
    await asyncio.sleep(0)
    return a + b


def chain_of(*hooks: tuple[Any, HookType]) -> HookChain:
    chain = HookChain(TARGET)
    for call, kind in hooks:
        chain.add(Hook(TARGET, call, kind))
    return chain


def test_without_hooks_the_original_stays() -> None:
    assert chain_of().wrap(add) is add


def test_before_keeps_or_changes_the_arguments() -> None:
    seen: list[Any] = []
    keep = chain_of((lambda *args, **kwargs: seen.append((args, kwargs)), HookType.BEFORE))
    assert keep.wrap(add)(1, b=2) == 3
    assert seen == [((1,), {"b": 2})]
    change = chain_of((lambda a, b=1: ((a * 10,), {"b": b}), HookType.BEFORE))
    assert change.wrap(add)(1, b=2) == 12


@pytest.mark.parametrize("answer", [5, (1, 2), ((1,), {}, 3), "ab"])
def test_before_that_returns_something_else_is_named(answer: object) -> None:
    wrapped = chain_of((lambda a: answer, HookType.BEFORE)).wrap(add)
    with pytest.raises(TypeError, match=r"BEFORE hook .* on package\.module\.add must return None"):
        wrapped(1)


def test_after_keeps_or_changes_the_result() -> None:
    assert chain_of((lambda result, a: None, HookType.AFTER)).wrap(add)(1) == 2
    assert chain_of((lambda result, a: result * 10, HookType.AFTER)).wrap(add)(1) == 20
    assert chain_of((lambda result, a: 0, HookType.AFTER)).wrap(add)(1) == 0


def test_around_has_full_control() -> None:
    assert chain_of((lambda inner, a: inner(a) + inner(a), HookType.AROUND)).wrap(add)(1) == 4
    assert chain_of((lambda inner, a: "skipped", HookType.AROUND)).wrap(add)(1) == "skipped"


def test_replace_stands_in_for_the_original_itself() -> None:
    def multiply(a: int, b: int = 1) -> int:
        return a * b

    assert chain_of((multiply, HookType.REPLACE)).wrap(add) is multiply


def test_later_hooks_are_outside_and_replace_is_innermost() -> None:
    order: list[str] = []

    def note(name: str) -> Any:
        def around(inner: Any, *args: Any) -> Any:
            order.append(name)
            return inner(*args)

        return around

    def other(*args: int) -> str:
        order.append("other")
        return "result"

    chain = chain_of(
        (note("first"), HookType.AROUND), (other, HookType.REPLACE), (note("last"), HookType.AROUND)
    )
    assert chain.wrap(add)(1) == "result"
    assert order == ["last", "first", "other"]


def test_a_wrapper_looks_like_the_original() -> None:
    wrapped = chain_of((lambda result, *args: None, HookType.AFTER)).wrap(add)
    assert (wrapped.__name__, wrapped.__doc__) == ("add", "Adds.")
    assert inspect.signature(wrapped) == inspect.signature(add)


def test_second_replace_warns_with_both_sources_and_wins(caplog: pytest.LogCaptureFixture) -> None:
    chain = HookChain(TARGET)
    chain.add(Hook(TARGET, add, HookType.REPLACE, HookSource("one", "dist-one")))
    with caplog.at_level(logging.WARNING):
        chain.add(Hook(TARGET, slow_add, HookType.REPLACE, HookSource("two", "dist-two")))
    for part in ("'one'", "dist-one", "'two'", "dist-two", TARGET):
        assert part in caplog.text
    assert chain.wrap(add) is slow_add


def test_a_class_is_a_hook_for_replace_alone() -> None:
    class Mine:
        pass

    for kind in (HookType.BEFORE, HookType.AFTER, HookType.AROUND):
        with pytest.raises(TypeError, match=f"Mine is a class; only HookType.REPLACE.*{kind.name}"):
            chain_of((Mine, kind))
    assert chain_of((Mine, HookType.REPLACE)).wrap(add) is Mine


def test_a_hook_must_be_callable() -> None:
    with pytest.raises(TypeError, match="must be callable, got 5"):
        chain_of((5, HookType.BEFORE))


def test_a_source_can_be_forgotten() -> None:
    chain = HookChain(TARGET)
    chain.add(Hook(TARGET, lambda result, a: "mine", HookType.AFTER, "me"))
    chain.add(Hook(TARGET, lambda result, a: f"{result}, yours", HookType.AFTER, "you"))
    chain.forget("me")
    assert chain.wrap(add)(1) == "2, yours"


async def test_a_coroutine_function_stays_one() -> None:
    async def double(result: int, *args: int) -> int:
        return result * 2

    async def more(inner: Any, *args: int) -> int:
        return int(await inner(*args)) + 1

    chain = chain_of(
        (lambda a: ((a + 1,), {}), HookType.BEFORE),
        (double, HookType.AFTER),
        (more, HookType.AROUND),
    )
    wrapped = chain.wrap(slow_add)
    assert inspect.iscoroutinefunction(wrapped)
    assert await wrapped(1) == (1 + 1 + 1) * 2 + 1


async def test_plain_hooks_work_on_a_coroutine_function() -> None:
    seen: list[int] = []
    chain = chain_of(
        (lambda result, *args: seen.append(result), HookType.AFTER),
        (lambda inner, *args: inner(*args), HookType.AROUND),
    )
    assert await chain.wrap(slow_add)(4) == 5
    assert seen == [5]
