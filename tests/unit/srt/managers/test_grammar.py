"""Constrained requests in the scheduler: they wait apart, and end when their grammar fails."""

import re
from concurrent.futures import Future

import pytest

from sglang.srt.constrained.base_grammar_backend import BaseGrammarBackend, BaseGrammarObject
from sglang.srt.constrained.limits import GrammarLimits
from sglang.srt.core.config import PriorityConfig
from sglang.srt.core.messages import AbortInput, ControlInput, FinishReason
from tests.unit.srt.managers.engine import Engine, generate, prompt_of, reference

MAX_COMPILING = GrammarLimits().num_compiling


class CountingGrammar(BaseGrammarObject):
    """Is fulfilled after `length` tokens; fails at the token number `fails_at`."""

    def __init__(self, length: int, fails_at: int | None = None) -> None:
        super().__init__()
        self.length, self.fails_at = length, fails_at
        self.accepted: list[int] = []

    def copy(self) -> "CountingGrammar":
        return CountingGrammar(self.length, self.fails_at)

    def accept_token(self, token: int) -> None:
        if len(self.accepted) == self.fails_at:
            raise RuntimeError("lost its way")
        self.accepted.append(token)

    def is_terminated(self) -> bool:
        return len(self.accepted) >= self.length


class Backend(BaseGrammarBackend):
    """`3` or `9!1`: length, and where it fails. `slow` is compiled when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.slow: Future[BaseGrammarObject | None] = Future()

    def get_cached_or_future_value(self, key, require_reasoning):  # type: ignore[no-untyped-def]
        if key[1] == "slow" and key not in self.cache:
            return self.slow, False
        return super().get_cached_or_future_value(key, require_reasoning)

    def check(self, key_type: str, key_string: str) -> str | None:
        if key_string == "broken check":
            raise RuntimeError("checks nothing")
        return "`/not` is not honoured" if "not" in key_string else None

    def compile_grammar(self, key_type: str, key_string: str) -> BaseGrammarObject:
        length, _, fails_at = key_string.partition("!")
        return CountingGrammar(int(length), int(fails_at) if fails_at else None)


class NeverReady(BaseGrammarBackend):
    """Compiles for ever."""

    def get_cached_or_future_value(self, key, require_reasoning):  # type: ignore[no-untyped-def]
        return Future(), False


@pytest.fixture
def backend() -> Backend:
    return Backend()


@pytest.fixture
def engine(backend: Backend) -> Engine:
    return Engine(grammar_backend=backend)


def test_a_fulfilled_grammar_ends_the_answer(engine: Engine) -> None:
    answers = engine.run(
        generate("a", prompt_of(20), 10, regex="3"), generate("b", prompt_of(9), 4)
    )
    assert answers["a"].token_ids == reference(prompt_of(20), 3)
    assert answers["a"].finish == FinishReason(type="stop", matched=answers["a"].token_ids[-1])
    assert answers["b"].token_ids == reference(prompt_of(9), 4)


def test_nobody_waits_for_another_one_s_grammar(engine: Engine, backend: Backend) -> None:
    engine.send(generate("slow", prompt_of(5), 10, regex="slow"), generate("b", prompt_of(9), 4))
    while "b" in engine.scheduler.live:
        assert engine.step()
    assert engine.outbox.answers["b"].finish is not None
    assert not engine.scheduler.is_idle
    backend.slow.set_result(CountingGrammar(2))
    answers = engine.run()
    assert answers["slow"].token_ids == reference(prompt_of(5), 2)


def test_what_does_not_compile_costs_its_request_a_400(engine: Engine) -> None:
    answers = engine.run(generate("a", prompt_of(5), 10, regex="x"), generate("b", prompt_of(9), 4))
    finish = answers["a"].finish
    assert finish is not None
    assert (finish.type, finish.status_code) == ("abort", 400)
    assert finish.message is not None
    assert finish.message.startswith("regex cannot be honoured: invalid literal")
    assert answers["b"].token_ids == reference(prompt_of(9), 4)


def test_a_grammar_that_fails_ends_its_answer_and_no_other(engine: Engine) -> None:
    answers = engine.run(
        generate("a", prompt_of(5), 10, regex="9!2"), generate("b", prompt_of(9), 10, regex="9")
    )
    finish = answers["a"].finish
    assert finish is not None
    assert (finish.type, finish.status_code) == ("abort", 500)
    assert finish.message == "The grammar backend failed: RuntimeError: lost its way"
    assert answers["b"].token_ids == reference(prompt_of(9), 9)
    assert engine.memory.used() == 0


def test_a_parked_request_can_be_aborted(engine: Engine) -> None:
    engine.send(generate("slow", prompt_of(5), 10, regex="slow"))
    engine.step()
    engine.send(AbortInput(rids=["slow"], message="gone"))
    answers = engine.run()
    finish = answers["slow"].finish
    assert finish is not None
    assert finish.message == "Abort in waiting queue: gone"


def test_a_parked_request_has_a_deadline(engine: Engine) -> None:
    engine.send(generate("slow", prompt_of(5), 10, regex="slow", deadline=3.0))
    engine.step()
    engine.now = 3.0
    finish = engine.run()["slow"].finish
    assert finish is not None
    assert finish.status_code == 504


def test_parked_requests_count_as_waiting(backend: Backend) -> None:
    engine = Engine(grammar_backend=backend, max_queued_requests=2)
    engine.send(*(generate(rid, prompt_of(5), 10, regex="slow") for rid in ("a", "b", "c")))
    engine.step()
    finish = engine.outbox.answers["c"].finish
    assert finish is not None
    assert finish.status_code == 503
    engine.send(ControlInput(id=1, name="flush_cache"))
    assert "2 wait" in str(engine.controls()[-1].result["message"])
    backend.slow.set_result(CountingGrammar(1))
    answers = engine.run()
    assert [len(answers[rid].token_ids) for rid in ("a", "b")] == [1, 1]


def test_a_mark_that_the_sampler_left_ends_the_request_and_frees_its_memory(engine: Engine) -> None:
    engine.send(generate("a", prompt_of(5), 10, regex="9"), generate("b", prompt_of(9), 6))
    engine.step()
    req = engine.scheduler.live.get("a")
    while req is None or not req.output_ids:
        engine.step()
    before = list(req.output_ids)
    req.to_finish = FinishReason(type="abort", message="no mask", status_code=500)
    answers = engine.run()
    assert answers["a"].token_ids == before
    assert answers["a"].finish == req.to_finish
    assert answers["b"].token_ids == reference(prompt_of(9), 6)
    assert engine.memory.used() == 0


def test_a_retracted_request_keeps_its_place_in_the_grammar(backend: Backend) -> None:
    engine = Engine(grammar_backend=backend, pool=64, schedule_conservativeness=0.01)
    prompts = {f"r{i}": prompt_of(12, i) for i in range(4)}
    answers = engine.run(*(generate(r, p, 24, regex="20") for r, p in prompts.items()))
    assert sum(answer.last.num_retractions for answer in answers.values()) > 0
    assert all(answers[r].token_ids == reference(p, 20) for r, p in prompts.items())


def test_nobody_leaves_the_queue_for_one_that_cannot_be_compiled_for() -> None:
    engine = Engine(
        grammar_backend=NeverReady(), max_running_requests=1, priority=PriorityConfig(enabled=True)
    )
    engine.send(generate("runs", prompt_of(9), 30), generate("waits", prompt_of(9, 1), 3))
    engine.step()
    urgent = range(MAX_COMPILING + 1)
    engine.send(*(generate(f"u{i}", prompt_of(5), 3, regex=f"{i}", priority=50) for i in urgent))
    assert "waits" in engine.scheduler.live
    finish = engine.outbox.answers[f"u{MAX_COMPILING}"].finish if engine.step() else None
    assert finish is not None and finish.status_code == 503


@pytest.mark.parametrize(
    ("constraint", "status", "message"),
    [
        ({"regex": "x" * (1 + (256 << 10))}, 400, "regex has 262145 bytes.*--grammar-max-bytes"),
        ({"regex": "(" * 100_000}, 400, "regex is nested 100000 levels.*--grammar-max-depth"),
        ({"ebnf": "(" * 65}, 400, "ebnf is nested 65 levels deep; at most 64"),
        ({"json_schema": '{"a":' * 50_000}, 400, "json_schema is nested 50000 levels"),
        ({"json_schema": "[]"}, 400, "json_schema must be an object, true or false.*an array"),
        ({"json_schema": "{"}, 400, "json_schema is not JSON: Expecting"),
        ({"structural_tag": "3"}, 400, "structural_tag must be an object"),
        ({"json_schema": '{"not": {}}'}, 400, "^json_schema cannot be honoured: `/not` is not hon"),
        ({"regex": "broken check"}, 500, "grammar backend failed: RuntimeError: checks nothing"),
    ],
)
def test_what_its_text_gives_away_is_refused_at_once(
    engine: Engine, backend: Backend, constraint: dict[str, str], status: int, message: str
) -> None:
    engine.send(generate("b", prompt_of(9), 4), generate("a", prompt_of(5), 10, **constraint))
    assert "a" not in engine.scheduler.live
    assert not backend.executor._threads, "nothing was compiled"
    answers = engine.run()
    finish = answers["a"].finish
    assert finish is not None and finish.status_code == status
    assert re.search(message, finish.message or ""), finish.message
    assert answers["b"].token_ids == reference(prompt_of(9), 4)


def test_the_limits_of_the_engine_count() -> None:
    backend = Backend()
    backend.limits = GrammarLimits(max_text_bytes=3, compile_seconds=2.5)
    engine = Engine(grammar_backend=backend)
    finish = engine.run(generate("long", prompt_of(5), 10, regex="1000"))["long"].finish
    assert finish is not None and "at most 3 are allowed" in (finish.message or "")
    backend.limits = GrammarLimits(compile_seconds=2.5)
    engine = Engine(grammar_backend=backend)
    backend.slow.set_running_or_notify_cancel()
    engine.send(generate("slow", prompt_of(5), 10, regex="slow"))
    engine.step()
    engine.now = 2.5
    finish = engine.run()["slow"].finish
    assert finish is not None and finish.status_code == 400
    assert finish.message == (
        "regex cannot be honoured: not compiled within 2.5 s (--grammar-compile-timeout); "
        "simplify it"
    )
