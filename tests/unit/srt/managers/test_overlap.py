"""A step is planned while the one before computes; nobody can tell by the answers."""

import threading

import pytest

from sglang.srt.core.batch import GenerationBatchResult, ScheduleBatch
from sglang.srt.core.messages import AbortInput, SchedulerInput, ShutdownInput
from tests.unit.srt.managers.engine import EOS, Engine, generate, prompt_of, reference

pytestmark = pytest.mark.loop("overlap")
GUARD = 60.0  # seconds; a hang, not a bar


class Held:
    """A worker that computes only when it is let."""

    def __init__(self, engine: Engine) -> None:
        self._model = engine.model
        self.may_run = threading.Semaphore(0)

    def forward_batch_generation(self, batch: ScheduleBatch) -> GenerationBatchResult:
        assert self.may_run.acquire(timeout=GUARD)
        return self._model.forward_batch_generation(batch)


def test_next_step_is_launched_before_the_result_of_the_one_before() -> None:
    engine = Engine()
    engine.send(generate("a", prompt_of(10), 20))
    lane, scheduler = engine.scheduler.lane, engine.scheduler
    assert lane is not None
    engine.step()
    lane.settle()  # the prompt is known
    held = engine.scheduler.worker = Held(engine)
    batch = scheduler.get_next_batch_to_run()
    assert batch is not None
    lane.launch(batch)
    following = scheduler.get_next_batch_to_run()
    assert following is not None and list(following.layout.futures) == [0]
    lane.launch(following)
    held.may_run.release(2)
    lane.settle()
    scheduler.worker = engine.model
    assert engine.run()["a"].token_ids == reference(prompt_of(10), 20)


def test_token_computed_after_the_end_is_dropped_and_its_page_is_free() -> None:
    engine = Engine(page_size=16)
    stop = reference(prompt_of(10), 8)[-1]
    engine.send(generate("a", prompt_of(10), 50, stop_token_ids=[stop]))
    answers = engine.run()
    expected = reference(prompt_of(10), 50)
    assert answers["a"].token_ids == expected[: expected.index(stop) + 1]
    computed = sum(len(batch.reqs) for batch in engine.model.batches)
    assert computed == len(answers["a"].token_ids) + 1
    assert engine.used() == 0


def test_no_step_is_computed_for_an_answer_that_ends_by_its_length() -> None:
    engine = Engine()
    engine.run(generate("a", prompt_of(10), 7))
    assert len(engine.model.batches) == 7


def test_what_is_cached_of_an_answer_is_only_what_was_known_to_be_computed() -> None:
    engine = Engine()
    stop = reference(prompt_of(10), 8)[-1]
    length = len(engine.ask(prompt_of(10), 50, stop_token_ids=[stop]).token_ids)
    whole = prompt_of(10) + reference(prompt_of(10), length)
    answer = engine.ask(whole + prompt_of(5, 3), 4)
    assert answer.last.cached_tokens == len(whole) - 1
    assert answer.token_ids == reference(whole + prompt_of(5, 3), 4)


def test_sampling_waits_for_the_history_that_it_reads() -> None:
    engine = Engine()
    seen: list[int] = []
    model = engine.model

    class Reading:
        def forward_batch_generation(self, batch: ScheduleBatch) -> GenerationBatchResult:
            result = model.forward_batch_generation(batch)
            batch.wait_for_history()
            seen.append(len(batch.reqs[0].output_ids))
            return result

    engine.scheduler.worker = Reading()
    answer = engine.ask(prompt_of(10), 12, presence_penalty=1.0)
    assert answer.token_ids == reference(prompt_of(10), 12)
    assert seen == list(range(12))


def test_a_pass_that_raises_ends_the_loop_and_nobody_waits_for_ever() -> None:
    engine = Engine()

    class Failing:
        def forward_batch_generation(self, batch: ScheduleBatch) -> GenerationBatchResult:
            raise RuntimeError("the kernel failed")

    class Inbox:
        def receive(self, *, wait: float | None) -> list[SchedulerInput]:
            return []

    engine.scheduler.worker, engine.scheduler.inbox = Failing(), Inbox()
    engine.send(generate("a", prompt_of(10), 20))
    with pytest.raises(RuntimeError, match="the kernel failed"):
        engine.scheduler.run_event_loop()


def test_abort_reaches_a_request_whose_pass_is_under_way() -> None:
    engine = Engine(page_size=16)
    engine.send(generate("a", prompt_of(30), 50), generate("b", prompt_of(30, 1), 9))
    for _ in range(4):
        engine.step()
    engine.send(AbortInput(rids=["a"]))
    assert "a" not in engine.scheduler.live
    answers = engine.run()
    assert answers["a"].token_ids == reference(prompt_of(30), len(answers["a"].token_ids))
    assert answers["b"].token_ids == reference(prompt_of(30, 1), 9)
    assert engine.used() == 0


def test_shut_down_while_a_pass_is_under_way() -> None:
    engine = Engine()
    engine.send(generate("a", prompt_of(30), 50))
    engine.step()
    engine.step()
    engine.send(ShutdownInput())
    finish = engine.outbox.answers["a"].finish
    assert finish is not None and finish.status_code == 503
    assert not engine.scheduler.live


def test_eos_ends_an_answer_in_the_middle_of_others() -> None:
    engine = Engine()
    tokens = reference(prompt_of(10), 40)
    answers = engine.run(
        *(generate(f"{i}", prompt_of(10), 40, stop_token_ids=[tokens[i]]) for i in range(0, 40, 7)),
        generate("all", prompt_of(10), 40, stop_token_ids=[EOS]),
    )
    for i in range(0, 40, 7):
        assert answers[f"{i}"].token_ids == tokens[: tokens.index(tokens[i]) + 1]
    assert answers["all"].token_ids == tokens
