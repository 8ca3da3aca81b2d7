"""The scheduler reports what its cache stores and drops, one list a step."""

from sglang.srt.core.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from sglang.srt.core.messages import ControlInput, StepOutput
from tests.unit.srt.managers.engine import Engine, generate, prompt_of


def start(engine: Engine) -> None:
    engine.send(ControlInput(id=1, name="kv_events"))


def reported(engine: Engine) -> list[list[KvEvent]]:
    steps = [output for output in engine.outbox.sent if isinstance(output, StepOutput)]
    return [step.kv_events for step in steps if step.kv_events]


def view(engine: Engine) -> set[int]:
    """What a subscriber believes to be cached."""
    pages: set[int] = set()
    for step in reported(engine):
        for event in step:
            match event:
                case BlockStored(block_hashes=hashes):
                    assert pages.isdisjoint(hashes)
                    pages.update(hashes)
                case BlockRemoved(block_hashes=hashes):
                    assert pages.issuperset(hashes)
                    pages.difference_update(hashes)
                case AllBlocksCleared():
                    pages.clear()
    return pages


def test_nothing_is_reported_until_somebody_wants_it() -> None:
    engine = Engine(page_size=4)
    engine.ask(prompt_of(20), 4)
    assert reported(engine) == []


def test_start_reports_what_is_there_before_it_is_answered() -> None:
    engine = Engine(page_size=4)
    engine.ask(prompt_of(20), 5)
    start(engine)
    assert engine.controls()[-1].error is None
    (step,) = reported(engine)
    assert step[0] == AllBlocksCleared()
    assert 4 * len(view(engine)) == engine.memory.tree_cache.total_size()
    sent = engine.outbox.sent
    order = [sent.index(each) for each in sent if getattr(each, "kv_events", None)]
    assert order[0] < sent.index(engine.controls()[-1])


def test_view_equals_the_cache_under_eviction_and_flush() -> None:
    engine = Engine(page_size=4, pool=160, chunked_prefill_size=16, max_running_requests=3)
    start(engine)
    for round_ in range(6):
        engine.run(
            *(generate(f"{round_}-{i}", prompt_of(30 + i, seed=round_ + i), 6) for i in range(4))
        )
        assert 4 * len(view(engine)) == engine.memory.tree_cache.total_size() > 0
    assert any(isinstance(event, BlockRemoved) for step in reported(engine) for event in step)
    engine.send(ControlInput(id=2, name="flush_cache"))
    assert view(engine) == set()


def test_cache_that_shares_nothing_has_nothing_to_report() -> None:
    engine = Engine(disable_radix_cache=True)
    start(engine)
    engine.ask(prompt_of(20), 4)
    assert reported(engine) == []
