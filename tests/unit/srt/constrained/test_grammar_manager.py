"""Requests wait for their grammar without holding anybody up, and never go on without it."""

from concurrent.futures import Future

from sglang.srt.constrained.base_grammar_backend import (
    BaseGrammarBackend,
    BaseGrammarObject,
    GrammarKey,
    InvalidGrammarObject,
)
from sglang.srt.constrained.grammar_manager import COMPILE_TIMEOUT, GrammarManager, grammar_key
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
    assert not manager.has_waiting_grammars()


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


def test_a_compilation_without_end_is_given_up() -> None:
    now = 0.0
    backend = HandBackend()
    manager = GrammarManager(backend, clock=lambda: now)
    req = request("a", regex="x")
    manager.process_req_with_grammar(req)
    now = COMPILE_TIMEOUT - 1
    assert manager.get_ready_grammar_requests() == []
    now = COMPILE_TIMEOUT
    assert manager.get_ready_grammar_requests() == [req]
    assert req.grammar.error_message == "not compiled within 60 s"


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
