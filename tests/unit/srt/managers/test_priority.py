"""Urgent requests go first, push out others, and are the last to lose their memory."""

import pytest

from sglang.srt.core.config import PriorityConfig
from sglang.srt.core.request import Req
from sglang.srt.core.sampling_params import SamplingParams
from sglang.srt.managers.priority import Priorities
from tests.unit.srt.managers.engine import Engine, generate, prompt_of, reference

ON = PriorityConfig(enabled=True)


def engine_of(priority: PriorityConfig = ON, **options: object) -> Engine:
    return Engine(priority=priority, **options)


def first_rids(engine: Engine) -> list[str]:
    """In the order in which their prompts were computed."""
    seen = [req.rid for batch in engine.model.batches for req in batch.reqs[: batch.num_prompts]]
    return list(dict.fromkeys(seen))


def a_req(priority: int | None) -> Req:
    return Req("r", [1], SamplingParams(), priority=priority)


def test_the_most_urgent_goes_first_and_equals_by_arrival() -> None:
    engine = engine_of(max_running_requests=1, schedule_policy="priority")
    given = {"a": None, "b": 5, "c": 20, "d": 5, "e": -3}
    engine.run(*(generate(rid, prompt_of(9, i), 2, priority=p)
                 for i, (rid, p) in enumerate(given.items())))  # fmt: skip
    assert first_rids(engine) == ["c", "b", "d", "a", "e"]


def test_small_values_may_be_the_urgent_ones() -> None:
    engine = engine_of(PriorityConfig(enabled=True, low_values_first=True), max_running_requests=1)
    engine.run(*(generate(f"{p}", prompt_of(9, p), 2, priority=p) for p in (3, 1, 2)))
    assert first_rids(engine) == ["1", "2", "3"]


def test_without_priorities_the_numbers_mean_nothing() -> None:
    engine = engine_of(PriorityConfig(), max_running_requests=1)
    engine.run(*(generate(f"{p}", prompt_of(9, p), 2, priority=p) for p in (1, 3, 2)))
    assert first_rids(engine) == ["1", "3", "2"]


def test_default_stands_in_for_a_missing_priority() -> None:
    priorities = Priorities(PriorityConfig(enabled=True, default=7))
    assert priorities.urgency(a_req(None)) == 7
    assert priorities.urgency(a_req(0)) == 0


def test_urgent_request_pushes_out_a_running_one_that_goes_on_later() -> None:
    engine = engine_of(max_running_requests=1)
    engine.send(generate("slow", prompt_of(20), 30, priority=0))
    for _ in range(6):
        engine.step()
    answers = engine.run(generate("urgent", prompt_of(10, 1), 4, priority=11))
    finished = [
        news.rid for sent in engine.outbox.sent for news in getattr(sent, "outputs", [])
        if news.finish is not None
    ]  # fmt: skip
    assert finished == ["urgent", "slow"]
    assert answers["slow"].token_ids == reference(prompt_of(20), 30)
    assert answers["urgent"].token_ids == reference(prompt_of(10, 1), 4)
    assert answers["slow"].last.num_retractions == 1


@pytest.mark.parametrize(
    ("config", "priority"),
    [(ON, 10), (PriorityConfig(enabled=True, preempts=False), 99), (PriorityConfig(), 99)],
    ids=["difference is not above the threshold", "no preemption", "no priorities"],
)
def test_running_request_stays(config: PriorityConfig, priority: int) -> None:
    engine = engine_of(config, max_running_requests=1)
    engine.send(generate("slow", prompt_of(20), 30, priority=0))
    engine.step()
    answers = engine.run(generate("urgent", prompt_of(10, 1), 4, priority=priority))
    assert answers["slow"].last.num_retractions == 0


def test_as_few_as_make_room_are_pushed_out() -> None:
    engine = engine_of(pool=240)
    for i in range(4):
        engine.send(generate(f"slow-{i}", prompt_of(30, i), 25, priority=i))
        engine.step()
    answers = engine.run(generate("urgent", prompt_of(50, 9), 10, priority=50))
    pushed = {rid for rid, answer in answers.items() if answer.last.num_retractions}
    assert pushed == {"slow-0"}
    for i in range(4):
        assert answers[f"slow-{i}"].token_ids == reference(prompt_of(30, i), 25)


def test_nobody_is_pushed_out_in_vain() -> None:
    engine = engine_of(pool=100)
    engine.send(generate("slow", prompt_of(20), 30, priority=0))
    engine.send(generate("equal", prompt_of(20, 1), 30, priority=45))
    engine.step()
    answers = engine.run(generate("urgent", prompt_of(80, 2), 10, priority=50))
    assert answers["slow"].last.num_retractions == 0


@pytest.mark.parametrize(("policy", "victim"), [("length", "b"), ("priority", "a")])
def test_who_loses_memory_first(policy: str, victim: str) -> None:
    engine = engine_of(
        PriorityConfig(enabled=True, preempts=False),
        pool=60,
        retraction_policy=policy,
        schedule_conservativeness=0.02,
    )
    engine.send(generate("a", prompt_of(10), 60, priority=0, ignore_eos=True))
    for _ in range(5):
        engine.step()
    engine.send(generate("b", prompt_of(12, 1), 30, priority=50, ignore_eos=True))
    while not any(req.num_retractions for req in engine.scheduler.live):
        assert engine.step()
    assert [req.rid for req in engine.scheduler.live if req.num_retractions] == [victim]


def test_full_queue_lets_the_least_urgent_go() -> None:
    engine = engine_of(max_running_requests=1, max_queued_requests=2)
    engine.send(generate("runs", prompt_of(9), 9, priority=99))
    engine.step()
    engine.send(*(generate(f"p{p}", prompt_of(9, p), 2, priority=p) for p in (5, 3, 8, 1)))
    answers = engine.run()
    refused = {rid for rid, answer in answers.items() if answer.finish.type == "abort"}  # type: ignore[union-attr]
    assert refused == {"p3", "p1"}
    for rid in refused:
        finish = answers[rid].finish
        assert finish is not None and finish.status_code == 503


def test_an_answer_that_has_begun_is_not_displaced() -> None:
    engine = engine_of(max_running_requests=1, max_queued_requests=2)
    engine.send(generate("begun", prompt_of(9), 9, priority=0))
    for _ in range(4):
        engine.step()
    engine.send(generate("urgent", prompt_of(9, 1), 9, priority=50))
    engine.step()
    engine.step()
    assert [req.rid for req in engine.scheduler.waiting] == ["begun"]
    engine.send(*(generate(f"p{p}", prompt_of(9, p), 2, priority=p) for p in (3, 5, 4)))
    answers = engine.run()
    refused = {rid for rid, answer in answers.items() if answer.finish.type == "abort"}  # type: ignore[union-attr]
    assert refused == {"p3", "p4"}
    assert answers["begun"].token_ids == reference(prompt_of(9), 9)


def test_nobody_is_displaced_where_all_have_begun() -> None:
    begun = a_req(0)
    begun.num_retractions = 1
    assert Priorities(ON).displaced_by(a_req(9), [begun]) is None


def test_priority_is_refused_where_nobody_looks_at_it_if_that_is_wished() -> None:
    engine = engine_of(PriorityConfig(refused_when_disabled=True))
    finish = engine.ask(prompt_of(5), 2, priority=1).finish
    assert finish is not None and finish.status_code == 503
    assert "priority scheduling is disabled" in str(finish.message)
    assert engine.ask(prompt_of(5), 2).token_ids == reference(prompt_of(5), 2)
