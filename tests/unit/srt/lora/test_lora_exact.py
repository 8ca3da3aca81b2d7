"""Answers with an adapter are those of the model with the adapter merged into its weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from sglang.srt.core.messages import GenerateInput
from sglang.srt.lora.lora_registry import LoRARef
from tests.unit.srt.lora.adapters import merged, save_adapter, save_model
from tests.unit.srt.managers.engine import generate
from tests.unit.srt.models.reference import NUM_TOKENS, prompts, reference_answers
from tests.unit.srt.models.scheduled import ScheduledModel

NAMES = ("a", "b", "c")
ADAPTERS: dict[str, dict[str, Any]] = {
    "a": {"seed": 1, "r": 4},
    "b": {"seed": 2, "r": 8, "targets": ("q_proj", "v_proj"), "use_rslora": True},
    "c": {"seed": 3, "r": 2, "targets": ("k_proj", "o_proj", "gate_proj", "down_proj")},
}


class Served:
    """The base model and its adapters; `references` are by name, None is the base."""

    def __init__(self, folder: Path) -> None:
        base = save_model(folder / "model")
        self.folder = folder
        self.references: dict[str | None, PreTrainedModel] = {None: base}
        for name, options in ADAPTERS.items():
            path = save_adapter(folder / name, base, **options)
            self.references[name] = merged(base, path)

    def model(self, **options: Any) -> ScheduledModel:
        paths = [f"{name}={self.folder / name}" for name in NAMES]
        return ScheduledModel(
            self.folder / "model", max_total_tokens=4096, lora_paths=paths, **options
        )

    def wanted(self, names: list[str | None]) -> list[list[int]]:
        """Answers to all prompts by each name in turn."""
        return [answer for name in names for answer in reference_answers(self.references[name])]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(tmp_path_factory.mktemp("served"))


def ask(model: ScheduledModel, names: list[str | None], **options: Any) -> list[list[int]]:
    """All prompts by each name, side by side."""
    requests = [
        request(model, f"{name}-{number}", prompt, name, **options)
        for name in names
        for number, prompt in enumerate(prompts())
    ]
    answers = model.run(requests)
    model.outbox.answers.clear()
    return answers


def request(
    model: ScheduledModel, rid: str, prompt: list[int], name: str | None, **options: Any
) -> GenerateInput:
    return generate(
        rid,
        prompt,
        NUM_TOKENS,
        temperature=0.0,
        ignore_eos=True,
        lora_name=name,
        lora_id=None if name is None else id_of(model, name),
        **options,
    )


def id_of(model: ScheduledModel, name: str) -> str:
    manager = model.worker.runner.lora_manager
    assert manager is not None
    return next(ref.lora_id for ref in manager.refs if ref.lora_name == name)


def cached_tokens(model: ScheduledModel, *requests: GenerateInput) -> list[int]:
    model.run(list(requests))
    counts = [model.outbox.answers[each.rid].last.cached_tokens for each in requests]
    model.outbox.answers.clear()
    return counts


@pytest.mark.parametrize("names", [["a"], ["b"], ["c"], [None]], ids=["a", "b", "c", "base"])
def test_every_adapter_alone_is_the_merged_model(served: Served, names: list[str | None]) -> None:
    assert ask(served.model(), names) == served.wanted(names)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunked_prefill_size": 16},
        {"enable_mixed_chunk": True, "chunked_prefill_size": 16},
        {"page_size": 16},
        {"disable_radix_cache": True},
        {"enable_deterministic_inference": True},
    ],
    ids=["plain", "chunks", "mixed", "pages", "no_cache", "deterministic"],
)
def test_adapters_and_the_base_model_side_by_side_are_each_alone(
    served: Served, options: dict[str, Any]
) -> None:
    names: list[str | None] = ["a", None, "b", "c"]
    assert ask(served.model(**options), names) == served.wanted(names)


@pytest.mark.parametrize("policy", ["lru", "fifo", "lfu"])
@pytest.mark.parametrize("num_places", [1, 2])
def test_more_adapters_than_places_take_turns(served: Served, policy: str, num_places: int) -> None:
    names: list[str | None] = ["a", "b", None, "c"]
    model = served.model(max_loras_per_batch=num_places, lora_eviction_policy=policy)
    for _ in range(2):
        assert ask(model, names) == served.wanted(names)


def test_a_cached_prefix_is_reused_by_the_same_adapter_alone(served: Served) -> None:
    model = served.model()
    prompt = prompts()[4]
    assert cached_tokens(model, request(model, "cold", prompt, "a")) == [0]
    again = [request(model, f"warm-{name}", prompt, name) for name in ("a", "b", None)]
    assert cached_tokens(model, *again) == [len(prompt) - 1, 0, 0]
    assert ask(model, ["a", "b", None]) == served.wanted(["a", "b", None])


@pytest.mark.parametrize("key_of", [lambda lora_id: lora_id, lambda lora_id: "a"])
def test_a_callers_key_that_equals_an_adapter_finds_nothing_of_it(
    served: Served, key_of: Callable[[str], str]
) -> None:
    model = served.model()
    prompt = prompts()[4]
    assert cached_tokens(model, request(model, "adapter", prompt, "a")) == [0]
    base = request(model, "base", prompt, None, extra_key=key_of(id_of(model, "a")))
    [answer] = model.run([base])
    assert model.outbox.answers["base"].last.cached_tokens == 0
    assert answer == reference_answers(served.references[None])[4]


def test_an_adapter_that_comes_later_is_exact_and_its_id_is_new(served: Served) -> None:
    model = served.model()
    manager = model.worker.runner.lora_manager
    assert manager is not None
    assert ask(model, ["a"]) == served.wanted(["a"])
    old = id_of(model, "a")
    assert manager.unload_lora_adapter(old).success
    again = manager.load_lora_adapter(LoRARef(lora_name="a", lora_path=str(served.folder / "b")))
    assert again.success and set(again.loaded_adapters) == set(NAMES)
    assert id_of(model, "a") != old
    assert ask(model, ["a"]) == served.wanted(["b"])


def test_in_deterministic_mode_no_bit_depends_on_other_adapters(served: Served) -> None:
    model = served.model(enable_deterministic_inference=True, disable_radix_cache=True)
    prompt = prompts()[3]

    def logprobs(*others: GenerateInput) -> list[float | None]:
        own = request(model, "own", prompt, "a", return_logprob=True, logprob_start_len=0)
        model.run([*others, own])
        outputs = model.outbox.answers["own"].outputs
        model.outbox.answers.clear()
        rows = [output.output_logprobs for output in outputs]
        return [value for row in rows if row is not None for value in row.logprobs]

    alone = logprobs()
    assert len(alone) == NUM_TOKENS
    others = [
        request(model, f"other-{number}", other, name)
        for number, (other, name) in enumerate(zip(prompts(), ("b", "a", None, "c"), strict=False))
    ]
    assert logprobs(*others) == alone
