"""Generation can be paused and goes on as if nothing had been."""

import pytest

from sglang.srt.core.messages import AbortInput, ControlInput
from tests.unit.srt.managers.engine import Engine, generate, prompt_of, reference


def control(engine: Engine, name: str, **args: object) -> dict[str, object]:
    engine.send(ControlInput(id=1, name=name, args=args))
    answer = engine.controls()[-1]
    assert answer.error is None, answer.error
    return answer.result


def busy_engine() -> Engine:
    engine = Engine(chunked_prefill_size=16, max_running_requests=3)
    engine.send(generate("a", prompt_of(10), 20), generate("b", prompt_of(10, 1), 20))
    for _ in range(4):
        engine.step()
    engine.send(generate("long", prompt_of(100, 2), 5), generate("waits", prompt_of(10, 3), 5))
    for _ in range(3):
        engine.step()
    return engine


def expected() -> dict[str, list[int]]:
    return {
        "a": reference(prompt_of(10), 20),
        "b": reference(prompt_of(10, 1), 20),
        "long": reference(prompt_of(100, 2), 5),
        "waits": reference(prompt_of(10, 3), 5),
    }


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_paused_answers_go_on_unchanged(mode: str) -> None:
    engine = busy_engine()
    result = control(engine, "pause_generation", mode=mode)
    assert result == {"message": "Generation paused successfully.", "status": "ok"}
    num_batches = len(engine.model.batches)
    assert not any(engine.step() for _ in range(5))
    engine.send(generate("new", prompt_of(10, 4), 3))
    assert not engine.step()
    assert len(engine.model.batches) == num_batches
    assert control(engine, "continue_generation")["status"] == "ok"
    answers = engine.run()
    assert {rid: answers[rid].token_ids for rid in expected()} == expected()
    assert answers["new"].token_ids == reference(prompt_of(10, 4), 3)


def test_retracted_requests_hold_no_memory_so_the_cache_can_be_flushed() -> None:
    engine = busy_engine()
    control(engine, "pause_generation", mode="retract")
    assert engine.used() == 0 and not engine.scheduler.live.holders()
    assert control(engine, "flush_cache")["success"] is True
    assert engine.memory.tree_cache.total_size() == 0
    control(engine, "continue_generation")
    answers = engine.run()
    assert {rid: answers[rid].token_ids for rid in expected()} == expected()


def test_requests_in_place_keep_the_cache_from_being_flushed() -> None:
    engine = busy_engine()
    control(engine, "pause_generation", mode="in_place")
    assert control(engine, "flush_cache")["success"] is False


def test_abort_ends_all_and_new_requests_wait() -> None:
    engine = busy_engine()
    control(engine, "pause_generation")
    for rid in expected():
        finish = engine.outbox.answers[rid].finish if rid in engine.outbox.answers else None
        assert finish is not None or rid not in engine.scheduler.live
    assert not engine.scheduler.live and engine.used() == 0
    engine.send(generate("new", prompt_of(10, 4), 3))
    assert not engine.step()
    control(engine, "continue_generation", torch_empty_cache=True)
    assert engine.num_releases == 1
    assert engine.run()["new"].token_ids == reference(prompt_of(10, 4), 3)


def test_deadlines_and_aborts_count_while_paused() -> None:
    engine = busy_engine()
    engine.send(generate("late", prompt_of(10, 5), 3, deadline=engine.now + 5))
    control(engine, "pause_generation", mode="in_place")
    engine.step()
    assert engine.scheduler.wait == 5.0
    engine.now += 5
    engine.send(AbortInput(rids=["a"]))
    engine.step()
    late, a = engine.outbox.answers["late"].finish, engine.outbox.answers["a"].finish
    assert late is not None and late.status_code == 504
    assert a is not None and a.type == "abort"
    assert engine.scheduler.wait is None, "nothing can happen any more without input"


def test_unknown_mode_is_refused_by_name() -> None:
    engine = Engine()
    engine.send(ControlInput(id=1, name="pause_generation", args={"mode": "stop"}))
    assert "mode must be one of abort, retract, in_place" in str(engine.controls()[-1].error)
    assert engine.ask(prompt_of(5), 2).token_ids == reference(prompt_of(5), 2)


def test_request_that_waited_too_long_ends_with_503() -> None:
    engine = Engine(max_running_requests=1, waiting_timeout=10.0)
    engine.send(generate("runs", prompt_of(10), 50), generate("waits", prompt_of(10, 1), 5))
    engine.step()
    engine.now += 9
    engine.step()
    assert "waits" in engine.scheduler.live
    engine.now += 1
    answers = engine.run()
    finish = answers["waits"].finish
    assert finish is not None and finish.status_code == 503
    assert "request waiting timeout" in str(finish.message)
    assert answers["runs"].token_ids == reference(prompt_of(10), 50)


def test_a_prompt_in_chunks_that_is_retracted_is_computed_anew() -> None:
    engine = Engine(chunked_prefill_size=16)
    prompt = prompt_of(100)
    engine.send(generate("a", prompt, 3, return_logprob=True, logprob_start_len=0))
    for _ in range(3):
        engine.step()
    control(engine, "pause_generation", mode="retract")
    control(engine, "continue_generation")
    answer = engine.run()["a"]
    (rows,) = [each.input_logprobs for each in answer.outputs if each.input_logprobs is not None]
    assert rows.token_ids == prompt
    assert answer.token_ids == reference(prompt, 3)
    # Its own chunks are no hit in the cache.
    assert (answer.last.num_retractions, answer.last.cached_tokens) == (1, 0)


def test_a_request_held_in_place_is_not_looked_at_again_and_again() -> None:
    engine = Engine(waiting_timeout=10.0)
    engine.send(generate("runs", prompt_of(100), 30))
    for _ in range(3):
        engine.step()
    control(engine, "pause_generation", mode="in_place")
    engine.now = 11.0
    engine.step()
    assert "runs" in engine.scheduler.live
    assert engine.scheduler.wait is None
