"""Aborts, deadlines, refusals and administration reach a request wherever it is."""

from sglang.srt.core.messages import AbortInput, ControlInput, ShutdownInput
from tests.unit.srt.managers.engine import Engine, generate, prompt_of, reference

# ------------------------------------------------------------------ aborts


def aborted(engine: Engine, rid: str) -> bool:
    finish = engine.outbox.answers[rid].finish
    return finish is not None and finish.type == "abort"


def test_waiting_request_is_aborted_without_memory() -> None:
    engine = Engine(max_running_requests=1)
    engine.send(generate("a", prompt_of(10), 50), generate("b", prompt_of(10, 1), 50))
    engine.step()
    engine.send(AbortInput(rids=["b"]))
    engine.step()
    finish = engine.outbox.answers["b"].finish
    assert finish is not None and str(finish.message).startswith("Abort in waiting queue")
    assert "b" not in engine.scheduler.live


def test_request_in_chunks_is_aborted() -> None:
    engine = Engine(chunked_prefill_size=16)
    engine.send(generate("a", prompt_of(100), 5))
    engine.step()
    engine.send(AbortInput(rids=["a"]))
    engine.step()
    assert aborted(engine, "a")
    assert engine.used() == 0
    assert engine.ask(prompt_of(100), 5).token_ids == reference(prompt_of(100), 5)


def test_running_request_is_aborted_and_its_neighbours_go_on() -> None:
    engine = Engine(page_size=16)
    prompts = {rid: prompt_of(20, i) for i, rid in enumerate(["job-1", "job-10", "job-11"])}
    engine.send(*(generate(rid, prompt, 30) for rid, prompt in prompts.items()))
    for _ in range(5):
        engine.step()
    engine.send(AbortInput(rids=["job-1"]))
    answers = engine.run()
    assert aborted(engine, "job-1")
    assert len(answers["job-1"].token_ids) in (4, 5)
    for rid in ("job-10", "job-11"):
        assert answers[rid].token_ids == reference(prompts[rid], 30)


def test_abort_of_a_finished_request_changes_nothing() -> None:
    engine = Engine()
    engine.run(generate("a", prompt_of(10), 2))
    engine.send(AbortInput(rids=["a", "never seen"]))
    engine.step()
    finish = engine.outbox.answers["a"].finish
    assert finish is not None and finish.type == "length"


def test_abort_of_all_ends_every_request() -> None:
    engine = Engine(max_running_requests=2, chunked_prefill_size=16)
    engine.send(*(generate(f"r{i}", prompt_of(40, i), 30) for i in range(5)))
    for _ in range(4):
        engine.step()
    engine.send(AbortInput(all=True))
    engine.step()
    assert engine.scheduler.is_idle
    assert engine.used() == 0


def test_expired_request_is_aborted() -> None:
    engine = Engine(max_running_requests=1)
    engine.send(generate("run", prompt_of(9), 90, deadline=5.0))
    engine.send(generate("wait", prompt_of(9, 1), 3, deadline=5.0))
    engine.step()
    assert not engine.scheduler.is_idle
    engine.now = 5.0
    engine.step()
    assert aborted(engine, "run") and aborted(engine, "wait")
    assert engine.used() == 0


def test_full_queue_refuses() -> None:
    engine = Engine(max_queued_requests=2)
    engine.send(*(generate(f"r{i}", prompt_of(5, i)) for i in range(3)))
    answers = engine.run()
    finish = answers["r2"].finish
    assert finish is not None
    assert (finish.status_code, finish.message) == (503, "The request queue is full.")
    assert answers["r1"].token_ids == reference(prompt_of(5, 1), 8)


def test_constraint_is_refused_without_a_grammar_backend() -> None:
    answer = Engine().ask(prompt_of(5), 5, regex="a+")
    assert answer.finish is not None and answer.finish.status_code == 400


def test_broken_stop_expression_is_refused_and_the_server_lives() -> None:
    engine = Engine()
    finish = engine.ask(prompt_of(5), 5, stop_regex=["("]).finish
    assert finish is not None and finish.status_code == 400
    assert "unclosed group" in str(finish.message)
    assert engine.ask(prompt_of(5), 5).token_ids == reference(prompt_of(5), 5)


def test_shutdown_answers_everybody_and_stops() -> None:
    engine = Engine()
    engine.send(generate("a", prompt_of(9), 90))
    engine.step()
    engine.send(generate("b", prompt_of(9, 1), 90), ShutdownInput())
    assert engine.scheduler.stopped
    assert aborted(engine, "a") and aborted(engine, "b")


def test_request_after_the_shutdown_is_refused() -> None:
    engine = Engine()
    engine.send(ShutdownInput(), generate("late", prompt_of(9), 3))
    assert not engine.step()
    finish = engine.outbox.answers["late"].finish
    assert finish is not None and finish.status_code == 503


# ------------------------------------------------------------------ control


def test_flush_is_refused_while_busy_and_then_forgets() -> None:
    engine = Engine()
    prompt = prompt_of(50)
    engine.send(generate("a", prompt, 5))
    engine.step()
    engine.send(ControlInput(id=1, name="flush_cache"))
    engine.run()
    assert engine.num_releases == 0
    engine.send(ControlInput(id=2, name="flush_cache"))
    assert engine.num_releases == 1
    assert [answer.result["success"] for answer in engine.controls()] == [False, True]
    assert engine.ask(prompt, 5).last.cached_tokens == 0


def test_loads_are_live() -> None:
    engine = Engine()
    engine.send(generate("a", prompt_of(50), 5), ControlInput(id=3, name="loads"))
    assert engine.controls()[0].result["num_waiting_reqs"] == 1


def waiting_uncached(engine: Engine) -> int:
    engine.send(ControlInput(id=1, name="loads"))
    count = engine.controls()[-1].result["num_waiting_uncached_tokens"]
    assert isinstance(count, int)
    return count


def test_cached_tokens_of_waiting_requests_are_no_load() -> None:
    engine = Engine(page_size=16, max_running_requests=1)
    warm = prompt_of(100)
    engine.ask(warm, 1)
    engine.send(generate("runs", prompt_of(10, 1), 50))
    engine.step()
    engine.send(generate("warm", [*warm, 1, 2, 3], 1), generate("cold", prompt_of(40, 2), 1))
    assert waiting_uncached(engine) == (103 - 96) + 40
    engine.run()
    assert waiting_uncached(engine) == 0


def test_without_a_cache_all_waiting_tokens_are_load() -> None:
    engine = Engine(max_running_requests=1, disable_radix_cache=True)
    engine.ask(prompt_of(100), 1)
    engine.send(generate("warm", prompt_of(100), 1))
    assert waiting_uncached(engine) == 100


def test_longest_prefix_first_counts_anew_what_is_cached() -> None:
    engine = Engine(max_running_requests=2, schedule_policy="lpm")
    shared = prompt_of(60)
    engine.send(generate("long", prompt_of(5, 1), 90))
    engine.step()
    engine.send(*(generate(f"r{i}", [*shared, i], 5) for i in range(4)))
    assert waiting_uncached(engine) == 4 * 61
    while not any(req.rid == "r1" for req in engine.scheduler.running.reqs):
        assert engine.step()
    assert waiting_uncached(engine) == 2


def test_retracted_request_waits_with_what_is_still_cached() -> None:
    engine = Engine(pool=160, schedule_conservativeness=0.01)
    engine.send(*(generate(f"r{i}", prompt_of(40, i), 60) for i in range(3)))
    while not engine.scheduler.stats.snapshot().num_retracted_requests_total:
        assert engine.step()
    victim, never_ran = engine.scheduler.waiting
    assert (victim.num_retractions, never_ran.num_retractions) == (1, 0)
    # The prompt of the retracted one is still in the tree.
    assert waiting_uncached(engine) == victim.seq_len - 40 + 40


def test_unknown_operation_names_the_known_ones() -> None:
    engine = Engine()
    engine.send(ControlInput(id=4, name="flush"))
    assert "flush_cache" in str(engine.controls()[0].error)
