"""Requests wait for their grammar without holding anybody up, and never go on without it."""

from concurrent.futures import Future

import pytest

from sglang.srt.constrained.agreement import Opinion, State
from sglang.srt.constrained.base_grammar_backend import (
    BaseGrammarBackend,
    BaseGrammarObject,
    GrammarKey,
    GrammarStats,
    InvalidGrammarObject,
)
from sglang.srt.constrained.compile_process import CompilerMissing, CompileTimeout
from sglang.srt.constrained.grammar_manager import (
    GrammarManager,
    grammar_key,
    why_invalid,
    why_refused,
)
from sglang.srt.constrained.limits import GrammarLimits
from sglang.srt.core.request import Req
from sglang.srt.core.sampling_params import SamplingParams

COMPILE_TIMEOUT = GrammarLimits().compile_seconds
MAX_COMPILING = GrammarLimits().num_compiling
TOO_SLOW = "not compiled within 20 s (--grammar-compile-timeout); simplify it"


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

    def begin(self) -> None:
        """Compilers take all that wait."""
        for future in self.futures.values():
            future.set_running_or_notify_cancel()


class Grammar(BaseGrammarObject):
    def copy(self) -> "Grammar":
        return Grammar()


def request(rid: str, **constraint: str) -> Req:
    return Req(rid, [1, 2], SamplingParams(**constraint))  # type: ignore[arg-type]


def thinking(rid: str) -> Req:
    req = request(rid, regex="x")
    req.require_reasoning = True
    return req


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


class Thinking(Grammar):
    thinks = False

    def maybe_init_reasoning(self, reasoning: bool) -> None:
        self.thinks = reasoning

    def copy(self) -> "Thinking":
        return Thinking()


def test_each_request_says_whether_its_model_reasons_first() -> None:
    backend = HandBackend()
    manager = GrammarManager(backend)
    reasons, answers = thinking("a"), request("b", regex="x")
    for req in (reasons, answers):
        assert manager.process_req_with_grammar(req)
    backend.futures["regex", "x"].set_result(Thinking())
    assert manager.get_ready_grammar_requests() == [reasons, answers]
    assert [req.grammar.thinks for req in (reasons, answers)] == [True, False]
    for req, expected in ((thinking("c"), True), (request("d", regex="x"), False)):
        assert not manager.process_req_with_grammar(req)  # from the cache
        assert req.grammar.thinks is expected


def test_a_grammar_that_knows_no_reasoning_is_refused_to_a_request_that_requires_it() -> None:
    backend = HandBackend()
    manager = GrammarManager(backend)
    first, second, plain = thinking("a"), thinking("b"), request("c", regex="x")
    assert manager.process_req_with_grammar(first)
    backend.futures["regex", "x"].set_result(Grammar())
    assert manager.get_ready_grammar_requests() == [first]
    assert manager.process_req_with_grammar(second)  # from the cache
    assert manager.get_ready_grammar_requests() == [second]
    for req in (first, second):
        assert "leave require_reasoning out" in why_invalid(req).message
    assert not manager.process_req_with_grammar(plain)
    assert isinstance(plain.grammar, Grammar)


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
    assert req.grammar.error_message == TOO_SLOW
    again = request("again", regex="x")
    assert manager.process_req_with_grammar(again)
    assert manager.get_ready_grammar_requests() == [again]
    assert again.grammar.error_message == TOO_SLOW


def test_a_compilation_that_never_begins_says_nothing_about_its_constraint() -> None:
    now = 0.0
    backend = HandBackend()
    backend.compile_grace = 5.0
    manager = GrammarManager(backend, clock=lambda: now)
    req = request("a", regex="x")
    manager.process_req_with_grammar(req)
    now = COMPILE_TIMEOUT + 5
    assert manager.get_ready_grammar_requests() == [req]
    assert why_invalid(req).status_code == 503
    assert "busy for 25 s" in why_invalid(req).message
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
    backend = HandBackend()
    manager = GrammarManager(backend)
    reqs = []
    for i in range(MAX_COMPILING):
        assert manager.can_take(SamplingParams(regex=str(i)))
        reqs.append(request(str(i), regex=str(i)))
        manager.process_req_with_grammar(reqs[-1])
    assert not manager.can_take(SamplingParams(regex="one more"))
    assert manager.can_take(SamplingParams(regex="0"))
    assert manager.can_take(SamplingParams())
    backend.begin()
    for req in reqs:
        manager.abort_request(req)
    more = request("more", regex="more")
    assert manager.can_take(more.sampling_params) and manager.process_req_with_grammar(more)
    assert manager.get_ready_grammar_requests() == [more]
    assert why_invalid(more).status_code == 503


class Sized(Grammar):
    def __init__(self, memory_bytes: int = 0) -> None:
        super().__init__()
        self.memory_bytes = memory_bytes


def test_a_constraint_that_is_large_when_compiled_is_refused() -> None:
    backend = HandBackend()
    backend.limits = GrammarLimits(compiled_bytes=100)
    manager = GrammarManager(backend)
    fits, large = request("a", regex="x"), request("b", regex="y")
    for req in (fits, large):
        manager.process_req_with_grammar(req)
    backend.futures["regex", "x"].set_result(Sized(100))
    backend.futures["regex", "y"].set_result(Sized(101))
    manager.get_ready_grammar_requests()
    assert isinstance(fits.grammar, Grammar)
    assert large.grammar.error_message == (
        "compiled it may take 100 bytes (--grammar-max-compiled-bytes) and needs 101; simplify it"
    )


def test_a_backend_that_ends_its_compilations_is_given_time_for_it() -> None:
    now = 0.0
    backend = HandBackend()
    backend.compile_grace = 5.0
    manager = GrammarManager(backend, clock=lambda: now)
    slow, missing = request("a", regex="x"), request("b", regex="y")
    for req in (slow, missing):
        manager.process_req_with_grammar(req)
        backend.futures["regex", req.sampling_params.regex or ""].set_running_or_notify_cancel()
    now = COMPILE_TIMEOUT + 4
    assert manager.get_ready_grammar_requests() == []
    backend.futures["regex", "x"].set_exception(CompileTimeout("ended"))
    backend.futures["regex", "y"].set_exception(CompilerMissing("no memory for it"))
    assert manager.get_ready_grammar_requests() == [slow, missing]
    assert why_invalid(slow).message == "regex cannot be honoured: ended"
    assert (why_invalid(slow).status_code, why_invalid(missing).status_code) == (400, 503)
    assert list(backend.cache) == [("regex", "x")]
    assert manager.counters.num_timeouts == 1
    assert manager.counters.compilation_seconds == []


def test_compilations_are_timed_by_their_thread_where_it_does() -> None:
    now = 0.0
    backend = HandBackend()
    manager = GrammarManager(backend, clock=lambda: now)
    for text in ("x", "y", "z"):
        manager.process_req_with_grammar(request(text, regex=text))
    timed = Grammar()
    timed.grammar_stats = GrammarStats(compilation_time=0.25)
    now = 3.0
    backend.futures["regex", "x"].set_result(timed)
    backend.futures["regex", "y"].set_result(Grammar())
    backend.futures["regex", "z"].set_exception(ValueError("unclosed group"))
    manager.get_ready_grammar_requests()
    assert manager.counters.compilation_seconds == [0.25, 3.0, 3.0]


# ------------------------------------------------------------------ other ranks


class OtherRank:
    """Says of each request what the test says."""

    def __init__(self) -> None:
        self.says: dict[str, Opinion] = {}
        self.asked: list[tuple[list[str], list[State]]] = []

    def agree(self, rids: list[str], own: list[Opinion]) -> list[Opinion]:
        self.asked.append((rids, [opinion.state for opinion in own]))
        return [self.says.get(rid, Opinion(State.PENDING)) for rid in rids]


def test_with_other_ranks_nobody_goes_on_before_all_agree() -> None:
    backend, ranks = HandBackend(), OtherRank()
    manager = GrammarManager(backend, ranks)  # type: ignore[arg-type]
    backend.set_cache(("regex", "known"), Grammar())
    known, other = request("known", regex="known"), request("other", regex="x")
    assert manager.get_ready_grammar_requests() == []
    assert ranks.asked == [], "without requests no rank is asked"
    for req in (known, other):
        assert manager.process_req_with_grammar(req)
    backend.futures["regex", "x"].set_exception(ValueError("no"))
    assert manager.get_ready_grammar_requests() == []
    assert ranks.asked == [(["known", "other"], [State.READY, State.REFUSED])]
    ranks.says = {
        "known": Opinion(State.READY),
        "other": Opinion(State.REFUSED, "no"),
    }
    assert manager.get_ready_grammar_requests() == [known, other]
    assert isinstance(known.grammar, Grammar)
    assert other.grammar.error_message == "no"
    assert len(manager) == 0


@pytest.mark.parametrize(("state", "status"), [(State.REFUSED, 400), (State.NEVER_COMPILED, 503)])
def test_what_fails_on_another_rank_fails_here_and_is_compiled_on(
    state: State, status: int
) -> None:
    backend, ranks = HandBackend(), OtherRank()
    manager = GrammarManager(backend, ranks)  # type: ignore[arg-type]
    req = request("a", regex="x")
    manager.process_req_with_grammar(req)
    backend.begin()
    ranks.says = {"a": Opinion(state, "why")}
    assert manager.get_ready_grammar_requests() == [req]
    assert (why_invalid(req).message, why_invalid(req).status_code) == (
        "regex cannot be honoured: why", status,
    )  # fmt: skip
    backend.futures["regex", "x"].set_result(Grammar())
    assert manager.get_ready_grammar_requests() == []
    assert isinstance(req.grammar, InvalidGrammarObject)
    assert ("regex", "x") in backend.cache


# ------------------------------------------------------------------ what a text gives away


def test_what_is_cached_is_not_checked_again() -> None:
    class Checking(HandBackend):
        num_checks = 0

        def check(self, key_type: str, key_string: str) -> str | None:
            self.num_checks += 1
            return None

    backend = Checking()
    for _ in range(2):
        assert why_refused(backend, SamplingParams(regex="x")) is None
    assert backend.num_checks == 2
    backend.set_cache(("regex", "x"), Grammar())
    assert why_refused(backend, SamplingParams(regex="x")) is None
    assert why_refused(backend, SamplingParams()) is None
    assert backend.num_checks == 2


def test_an_aborted_request_leaves_the_queue_and_its_compilation_serves_the_next() -> None:
    backend = HandBackend()
    manager = GrammarManager(backend)
    gone, next_one = request("a", regex="x"), request("b", regex="x")
    manager.process_req_with_grammar(gone)
    backend.begin()
    manager.abort_request(gone)
    assert len(manager) == 0
    manager.process_req_with_grammar(next_one)
    backend.futures["regex", "x"].set_result(Grammar())
    assert manager.get_ready_grammar_requests() == [next_one]


def test_a_compilation_that_has_not_begun_ends_with_its_last_request() -> None:
    backend = HandBackend()
    manager = GrammarManager(backend)
    reqs = [request(str(i), regex=str(i // 2)) for i in range(2 * MAX_COMPILING)]
    for req in reqs:
        assert manager.process_req_with_grammar(req)
    for req in reqs[1:]:
        manager.abort_request(req)
    waiting = [future for future in backend.futures.values() if not future.cancelled()]
    assert waiting == [backend.futures["regex", "0"]]
    more = request("more", regex="more")
    assert manager.process_req_with_grammar(more)
    for key in ("0", "more"):
        backend.futures["regex", key].set_result(Grammar())
    assert manager.get_ready_grammar_requests() == [reqs[0], more]


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
