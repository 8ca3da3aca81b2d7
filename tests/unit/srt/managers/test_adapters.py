"""How many adapters compute together, and that nobody waits for ever."""

from sglang.srt.core.kv_events import BlockStored
from sglang.srt.core.messages import AbortInput, ControlInput, StepOutput
from sglang.srt.lora.lora_manager import LoRAUpdateResult
from sglang.srt.lora.lora_registry import LoRARef
from tests.unit.srt.managers.engine import Engine, generate, prompt_of, reference


class Loaded:
    """Adapters by id that change nothing."""

    def __init__(self, *lora_ids: str, most: int = 2, pinned: frozenset[str] = frozenset()) -> None:
        self.max_loras_per_batch = most
        self.pinned = pinned
        self.num_slots_used = 1
        self.ids = set(lora_ids)

    def __contains__(self, lora_id: str) -> bool:
        return lora_id in self.ids

    def load_lora_adapter(self, lora_ref: LoRARef) -> LoRAUpdateResult:
        self.ids.add(lora_ref.lora_id)
        return LoRAUpdateResult(True)

    def unload_lora_adapter(self, lora_id: str) -> LoRAUpdateResult:
        self.ids.discard(lora_id)
        return LoRAUpdateResult(True)


def engine_with(adapters: Loaded, **options: object) -> Engine:
    class WithAdapters(Engine):
        pass

    WithAdapters.adapters = adapters
    return WithAdapters(**options)


def ids_per_pass(engine: Engine) -> list[set[str]]:
    return [
        {req.lora_id for req in batch.reqs if req.lora_id is not None}
        for batch in engine.model.batches
    ]


def requests(*lora_ids: str | None, length: int = 40) -> list[object]:
    return [
        generate(f"r{i}", prompt_of(length, seed=i), 6, lora_id=lora_id, lora_name=lora_id)
        for i, lora_id in enumerate(lora_ids)
    ]


def test_a_pass_has_no_more_adapters_than_places() -> None:
    engine = engine_with(Loaded("a", "b", "c", "d"), chunked_prefill_size=64)
    answers = engine.run(*requests("a", "b", "c", None, "d", "a"))
    for i in range(6):
        answer = answers[f"r{i}"]
        assert answer.finish is not None and answer.finish.type == "length"
        assert answer.token_ids == reference(prompt_of(40, seed=i), 6)
    assert max(map(len, ids_per_pass(engine))) == 2


def test_pinned_adapters_have_places_of_their_own() -> None:
    adapters = Loaded("a", "b", "p", most=2, pinned=frozenset(["p"]))
    engine = engine_with(adapters)
    engine.run(*requests("a", "b", "p"))
    assert {"a", "b"} not in [ids - {"p"} for ids in ids_per_pass(engine)]


def test_others_do_not_wait_for_one_without_a_place() -> None:
    engine = engine_with(Loaded("a", "b", most=1))
    engine.send(*requests("a", "b", None))
    engine.step()
    [first] = engine.model.batches[:1]
    assert [req.rid for req in first.reqs] == ["r0", "r2"]


def is_served_in_time(drain_after: float) -> bool:
    """Whether a request gets its place while others with another adapter keep coming."""
    engine = engine_with(Loaded("a", "b", most=1), lora_drain_after=drain_after)
    engine.send(*requests("a", "b"))
    for turn in range(60):
        engine.now += 1.0
        engine.send(generate(f"more{turn}", prompt_of(8, seed=turn), 6, lora_id="a"))
        engine.step()
    return engine.outbox.answers.get("r1") is not None


def test_with_a_threshold_a_place_comes_free_for_who_waits_longest() -> None:
    assert not is_served_in_time(0.0)
    assert is_served_in_time(5.0)


def test_an_aborted_waiter_holds_nobody_up() -> None:
    engine = engine_with(Loaded("a", "b", most=1), lora_drain_after=1.0)
    engine.send(*requests("a", "b"))
    engine.step()
    engine.now = 2.0
    engine.send(generate("late", prompt_of(8, seed=9), 6, lora_id="a"))
    engine.step()
    engine.send(AbortInput(rids=["r1"]))
    answers = engine.run()
    assert {"r0", "late"} <= set(answers)


def test_an_adapter_that_is_gone_is_refused() -> None:
    engine = engine_with(Loaded("a"))
    answer = engine.ask(prompt_of(4), 2, lora_id="b", lora_name="bee")
    assert answer.finish is not None and answer.finish.status_code == 400
    assert "'bee' is not loaded" in str(answer.finish.message)


def test_without_adapters_nothing_can_be_loaded() -> None:
    engine = Engine()
    engine.send(ControlInput(id=1, name="load_lora", args={"lora_id": "a"}))
    assert "--enable-lora" in str(engine.controls()[0].error)


def test_adapters_come_and_go_by_operation() -> None:
    adapters = Loaded()
    engine = engine_with(adapters)
    args = {"lora_id": "a", "lora_name": "n", "lora_path": "p", "pinned": False}
    engine.send(ControlInput(id=1, name="load_lora", args=args))
    assert "a" in adapters
    engine.send(ControlInput(id=2, name="unload_lora", args={"lora_id": "a"}))
    assert "a" not in adapters
    done = {"success": True, "error_message": None}
    assert [control.result for control in engine.controls()] == [done, done]


def test_equal_prompts_of_two_adapters_do_not_wait_for_each_others_cache() -> None:
    engine = engine_with(Loaded("a", "b"))
    prompt = prompt_of(100)
    engine.send(
        generate("x", prompt, 2, lora_id="a", lora_name="a"),
        generate("y", prompt, 2, lora_id="b", lora_name="b"),
    )
    engine.step()
    assert len(engine.model.batches[0].reqs) == 2


def test_places_are_part_of_the_load_and_events_name_the_adapter() -> None:
    engine = engine_with(Loaded("a"), page_size=4)
    engine.send(ControlInput(id=1, name="kv_events"))
    engine.ask(prompt_of(8), 1, lora_id="a", lora_name="bee", extra_key="k")
    engine.ask(prompt_of(8), 1, extra_key="k")
    steps = [output for output in engine.outbox.sent if isinstance(output, StepOutput)]
    assert (steps[-1].load.lora_slots_used, steps[-1].load.lora_slots_total) == (1, 2)
    stored = [event for step in steps for event in step.kv_events if isinstance(event, BlockStored)]
    assert [(event.namespace, event.lora_name) for event in stored] == [
        ("k", "bee"),
        ("k", "bee"),
        ("k", None),
        ("k", None),
    ]
    assert len({event.block_hashes[0] for event in stored}) == 4
