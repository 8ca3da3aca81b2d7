"""What a backend keeps is limited, and threads that never end are replaced."""

import threading
from collections.abc import Iterator

import pytest

from sglang.srt.constrained import base_grammar_backend
from sglang.srt.constrained.base_grammar_backend import BaseGrammarBackend, BaseGrammarObject
from sglang.srt.constrained.grammar_manager import GrammarManager, why_invalid
from sglang.srt.constrained.limits import GrammarLimits, too_slow
from sglang.srt.core.request import Req
from sglang.srt.core.sampling_params import SamplingParams

COMPILE_TIMEOUT = GrammarLimits().compile_seconds
MANY = 30.0  # seconds: more than anything takes on a busy machine


class Sized(BaseGrammarObject):
    def __init__(self, memory_bytes: int = 0) -> None:
        super().__init__()
        self.memory_bytes = memory_bytes


def request(rid: str, regex: str) -> Req:
    return Req(rid, [1, 2], SamplingParams(regex=regex))


def test_the_cache_forgets_what_was_not_used_for_longest() -> None:
    backend = BaseGrammarBackend()
    backend.limits = GrammarLimits(cache_entries=3, cache_bytes=10_000)
    for text in "abc":
        backend.set_cache(("regex", text), Sized())
    assert backend.get_cached_or_future_value(("regex", "a"), require_reasoning=False)[1]
    backend.set_cache(("regex", "d"), Sized())
    assert [text for _, text in backend.cache] == ["c", "a", "d"]
    backend.set_cache(("regex", "e" * 6000), Sized())
    assert [text[0] for _, text in backend.cache] == ["a", "d", "e"]
    backend.set_cache(("regex", "f"), Sized(5000))
    assert [text[0] for _, text in backend.cache] == ["f"]
    assert 5000 < backend.cached_bytes < 5200
    backend.set_cache(("regex", "f"), Sized(70))
    assert 70 < backend.cached_bytes < 270
    GrammarManager(backend).clear()
    assert not backend.cache and not backend.cached_bytes


def test_what_the_cache_cannot_hold_displaces_nothing() -> None:
    backend = BaseGrammarBackend()
    backend.limits = GrammarLimits(cache_bytes=1000)
    backend.set_cache(("regex", "a"), Sized())
    backend.set_cache(("regex", "b"), Sized(1000))
    assert [text for _, text in backend.cache] == ["a"]
    backend.set_cache(("regex", "a"), Sized(1000))
    assert (backend.cache, backend.cached_bytes) == ({}, 0)
    backend.limits = GrammarLimits(cache_entries=0)
    backend.set_cache(("regex", "a"), Sized())
    assert (backend.cache, backend.cached_bytes) == ({}, 0)


# ------------------------------------------------------------------ threads that do not come back


class Stubborn(BaseGrammarBackend):
    """`stuck…` is compiled until the test ends, whatever anybody says."""

    def __init__(self) -> None:
        super().__init__()
        self.executor = base_grammar_backend.ThreadPoolExecutor(2)
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Event()

    def compile_grammar(self, key_type: str, key_string: str) -> BaseGrammarObject:
        if key_string.startswith("stuck"):
            self.begun.release()
            assert self.may_end.wait(MANY)
        return Sized()


@pytest.fixture
def stubborn() -> Iterator[Stubborn]:
    backend = Stubborn()
    yield backend
    backend.may_end.set()
    backend.close()


def ready_from(manager: GrammarManager) -> list[Req]:
    for _ in range(10_000):
        if ready := manager.get_ready_grammar_requests(may_wait=True):
            return ready
    raise AssertionError("nothing was compiled")


def test_threads_that_never_end_are_replaced_and_those_who_waited_for_them_are_served(
    stubborn: Stubborn,
) -> None:
    now = 0.0
    manager = GrammarManager(stubborn, clock=lambda: now)
    for turn in range(3):
        stuck = [request(f"{i}", regex=f"stuck {turn} {i}") for i in range(2)]
        waiting = request("waits", regex=f"{turn}")
        for req in stuck:
            manager.process_req_with_grammar(req)
            assert stubborn.begun.acquire(timeout=MANY)
        assert manager.get_ready_grammar_requests() == []
        now += COMPILE_TIMEOUT / 2
        manager.process_req_with_grammar(waiting)
        now += COMPILE_TIMEOUT / 2
        assert manager.get_ready_grammar_requests() == stuck
        assert [req.grammar.error_message for req in stuck] == [too_slow(COMPILE_TIMEOUT)] * 2
        assert ready_from(manager) == [waiting]
        assert isinstance(waiting.grammar, Sized)


def test_one_that_gets_a_thread_so_late_has_its_whole_time_then(stubborn: Stubborn) -> None:
    now = 0.0
    manager = GrammarManager(stubborn, clock=lambda: now)
    reqs = [request(f"{i}", regex=f"stuck {i}") for i in range(3)]
    for req in reqs:
        manager.process_req_with_grammar(req)
    for _ in range(2):
        assert stubborn.begun.acquire(timeout=MANY)
    assert manager.get_ready_grammar_requests() == []
    now = COMPILE_TIMEOUT
    assert manager.get_ready_grammar_requests() == reqs[:2]
    now += COMPILE_TIMEOUT / 2
    assert manager.get_ready_grammar_requests() == []
    stubborn.may_end.set()
    assert ready_from(manager) == reqs[2:]
    assert isinstance(reqs[2].grammar, Sized)


def test_lost_threads_are_limited_and_come_back_when_they_end(
    stubborn: Stubborn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_grammar_backend, "MAX_LOST_THREADS", 2)
    now = 0.0
    manager = GrammarManager(stubborn, clock=lambda: now)
    for turn in range(2):
        for i in range(2):
            manager.process_req_with_grammar(request(f"{turn} {i}", regex=f"stuck {turn} {i}"))
            assert stubborn.begun.acquire(timeout=MANY)
        manager.get_ready_grammar_requests()
        now += COMPILE_TIMEOUT
        assert len(manager.get_ready_grammar_requests()) == 2
    waits = request("waits", regex="x")
    manager.process_req_with_grammar(waits)
    now += COMPILE_TIMEOUT
    assert manager.get_ready_grammar_requests() == [waits]
    assert why_invalid(waits).status_code == 503
    stubborn.may_end.set()
    again = request("again", regex="x")
    manager.process_req_with_grammar(again)
    assert ready_from(manager) == [again]
    assert isinstance(again.grammar, Sized)
