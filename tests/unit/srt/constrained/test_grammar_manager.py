"""Requests wait for their grammar without holding anybody up, and never go on without it."""

from concurrent.futures import Future

import pytest

from sglang.srt.constrained import base_grammar_backend
from sglang.srt.constrained.base_grammar_backend import (
    BaseGrammarBackend,
    BaseGrammarObject,
    GrammarKey,
    InvalidGrammarObject,
)
from sglang.srt.constrained.grammar_manager import (
    COMPILE_TIMEOUT,
    MAX_COMPILING,
    GrammarManager,
    grammar_key,
    why_invalid,
)
from sglang.srt.core.request import Req
from sglang.srt.core.sampling_params import SamplingParams


class HandBackend(BaseGrammarBackend):
    """Compilations end when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.futures: dict[GrammarKey, Future[BaseGrammarObject | None]] = {}

    def get_cached_or_future_value(self, key, require_reasoning):  # type: ignore[no-untyped-def]
        if key in self.cache:
            return super().get_cached_or_future_value(key, require_reasoning)
        assert key not in self.futures, "one constraint is compiled once"
        self.futures[key] = Future()
        return self.futures[key], False


class Grammar(BaseGrammarObject):
    def copy(self) -> "Grammar":
        return Grammar()


def request(rid: str, **constraint: str) -> Req:
    return Req(rid, [1, 2], SamplingParams(**constraint))  # type: ignore[arg-type]


def test_keys_are_kind_and_text() -> None:
    assert grammar_key(SamplingParams()) is None
    assert grammar_key(SamplingParams(json_schema="{}")) == ("json", "{}")
    assert grammar_key(SamplingParams(ebnf="root ::= x")) == ("ebnf", "root ::= x")


def test_without_constraint_nothing_waits() -> None:
    manager = GrammarManager(None)
    req = request("a")
    assert not manager.process_req_with_grammar(req)
    assert req.grammar is None
    assert len(manager) == 0


def test_equal_constraints_share_a_compilation_and_no_state() -> None:
    backend = HandBackend()
    manager = GrammarManager(backend)
    first, second, other = request("a", regex="x"), request("b", regex="x"), request("c", regex="y")
    assert all(manager.process_req_with_grammar(req) for req in (first, second, other))
    assert manager.get_ready_grammar_requests() == []
    backend.futures["regex", "x"].set_result(Grammar())
    assert manager.get_ready_grammar_requests() == [first, second]
    assert manager.grammar_queue == [other]
    assert isinstance(first.grammar, Grammar)
    assert first.grammar is not second.grammar
    later = request("d", regex="x")
    assert not manager.process_req_with_grammar(later)
    assert later.grammar not in (None, first.grammar, second.grammar)


def test_what_does_not_compile_is_invalid_now_and_later() -> None:
    backend = HandBackend()
    manager = GrammarManager(backend)
    for rid, text in (("raises", "x"), ("nothing", "y")):
        manager.process_req_with_grammar(request(rid, regex=text))
    backend.futures["regex", "x"].set_exception(ValueError("unclosed group"))
    backend.futures["regex", "y"].set_result(None)
    grammars = [req.grammar for req in manager.get_ready_grammar_requests()]
    assert [repr(grammar) for grammar in grammars] == [
        "InvalidGrammarObject(error_message='unclosed group')",
        "InvalidGrammarObject(error_message='the backend returned nothing')",
    ]
    again = request("again", regex="x")
    assert manager.process_req_with_grammar(again)
    assert manager.get_ready_grammar_requests() == [again]
    assert isinstance(again.grammar, InvalidGrammarObject)


def test_a_compilation_without_end_is_given_up_and_its_wait_for_a_thread_does_not_count() -> None:
    now = 0.0
    backend = HandBackend()
    manager = GrammarManager(backend, clock=lambda: now)
    req = request("a", regex="x")
    manager.process_req_with_grammar(req)
    now = COMPILE_TIMEOUT - 1
    assert manager.get_ready_grammar_requests() == []
    backend.futures["regex", "x"].set_running_or_notify_cancel()
    assert manager.get_ready_grammar_requests() == []
    now += COMPILE_TIMEOUT - 1
    assert manager.get_ready_grammar_requests() == []
    now += 1
    assert manager.get_ready_grammar_requests() == [req]
    assert req.grammar.error_message == "not compiled within 60 s"
    again = request("again", regex="x")
    assert manager.process_req_with_grammar(again)
    assert manager.get_ready_grammar_requests() == [again]
    assert again.grammar.error_message == "not compiled within 60 s"


def test_a_compilation_that_never_begins_says_nothing_about_its_constraint() -> None:
    now = 0.0
    backend = HandBackend()
    manager = GrammarManager(backend, clock=lambda: now)
    req = request("a", regex="x")
    manager.process_req_with_grammar(req)
    now = COMPILE_TIMEOUT
    assert manager.get_ready_grammar_requests() == [req]
    assert why_invalid(req).status_code == 503
    assert backend.futures.pop(("regex", "x")).cancelled()
    assert manager.process_req_with_grammar(request("again", regex="x"))
    backend.futures["regex", "x"].set_result(Grammar())
    [again] = manager.get_ready_grammar_requests()
    assert isinstance(again.grammar, Grammar)


def test_a_cancelled_compilation_is_no_grammar() -> None:
    backend = HandBackend()
    manager = GrammarManager(backend)
    req = request("a", regex="x")
    manager.process_req_with_grammar(req)
    backend.futures["regex", "x"].cancel()
    assert manager.get_ready_grammar_requests() == [req]
    assert req.grammar.error_message == "its compilation was cancelled"


class BrokenBackend(HandBackend):
    """Fails where `fails` says; `empty` returns nothing and calls it cached."""

    def __init__(self, fails: str) -> None:
        super().__init__()
        self.fails = fails

    def get_cached_or_future_value(self, key, require_reasoning):  # type: ignore[no-untyped-def]
        if self.fails == "look-up":
            raise RuntimeError("look-up failed")
        if self.fails == "empty":
            return None, True
        return super().get_cached_or_future_value(key, require_reasoning)

    def set_cache(self, key: GrammarKey, value: BaseGrammarObject) -> None:
        raise RuntimeError("keeping failed")


class Uncopied(Grammar):
    def copy(self) -> "Grammar":
        raise RuntimeError("copy failed")


@pytest.mark.parametrize(
    ("fails", "message"),
    [("look-up", "look-up failed"), ("empty", "the backend returned nothing")],
)
def test_a_backend_that_fails_to_look_up_gives_no_free_answer(fails: str, message: str) -> None:
    manager = GrammarManager(BrokenBackend(fails))
    req = request("a", regex="x")
    assert manager.process_req_with_grammar(req)
    assert manager.get_ready_grammar_requests() == [req]
    assert isinstance(req.grammar, InvalidGrammarObject)
    assert req.grammar.error_message == message


def test_a_grammar_that_cannot_be_copied_is_invalid_and_a_lost_cache_harms_nobody() -> None:
    backend = BrokenBackend("nowhere")
    manager = GrammarManager(backend)
    uncopied, good = request("a", regex="x"), request("b", regex="y")
    for req in (uncopied, good):
        manager.process_req_with_grammar(req)
    backend.futures["regex", "x"].set_result(Uncopied())
    backend.futures["regex", "y"].set_result(Grammar())
    assert manager.get_ready_grammar_requests() == [uncopied, good]
    assert uncopied.grammar.error_message == "copy failed"
    assert isinstance(good.grammar, Grammar)


def test_constraints_in_compilation_are_limited() -> None:
    manager = GrammarManager(HandBackend())
    for i in range(MAX_COMPILING):
        assert manager.can_take(SamplingParams(regex=str(i)))
        manager.process_req_with_grammar(request(str(i), regex=str(i)))
    assert not manager.can_take(SamplingParams(regex="one more"))
    assert manager.can_take(SamplingParams(regex="0"))
    assert manager.can_take(SamplingParams())


def test_the_cache_forgets_what_was_not_used_for_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_grammar_backend, "MAX_CACHED", 3)
    monkeypatch.setattr(base_grammar_backend, "MAX_CACHED_TEXT", 100)
    backend = BaseGrammarBackend()
    for text in "abc":
        backend.set_cache(("regex", text), Grammar())
    assert backend.get_cached_or_future_value(("regex", "a"), require_reasoning=False)[1]
    backend.set_cache(("regex", "d"), Grammar())
    assert [text for _, text in backend.cache] == ["c", "a", "d"]
    backend.set_cache(("regex", "e" * 99), Grammar())
    assert [text[0] for _, text in backend.cache] == ["d", "e"]
    GrammarManager(backend).clear()
    assert not backend.cache
    backend.set_cache(("regex", "f" * 100), Grammar())
    assert len(backend.cache) == 1


def test_an_aborted_request_leaves_the_queue_and_its_compilation_serves_the_next() -> None:
    backend = HandBackend()
    manager = GrammarManager(backend)
    gone, next_one = request("a", regex="x"), request("b", regex="x")
    manager.process_req_with_grammar(gone)
    manager.abort_request(gone)
    assert len(manager) == 0
    manager.process_req_with_grammar(next_one)
    backend.futures["regex", "x"].set_result(Grammar())
    assert manager.get_ready_grammar_requests() == [next_one]


def test_when_nothing_else_runs_it_looks_for_the_end_of_a_compilation() -> None:
    backend = BaseGrammarBackend()
    backend.compile_grammar = lambda key_type, key_string: Grammar()  # type: ignore[method-assign]
    manager = GrammarManager(backend)
    req = request("a", regex="x")
    manager.process_req_with_grammar(req)
    for _ in range(10_000):
        if ready := manager.get_ready_grammar_requests(may_wait=True):
            break
    assert ready == [req]
