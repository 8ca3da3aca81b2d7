"""Adapters of the demo model, in a program and with the loop that overlaps steps."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import sglang
from tests.e2e import processes
from tests.e2e.reference import demo_folder

PROMPT = "The quick brown fox jumps over the lazy dog, and then"
NUM_TOKENS = 12
GREEDY = {"temperature": 0, "max_new_tokens": NUM_TOKENS, "ignore_eos": True}
ADAPTERS = {"first": (4, ("q_proj", "v_proj")), "second": (8, ("o_proj", "up_proj"))}


@dataclass
class Reference:
    """Adapters with random weights, and transformers' answers with each of them merged."""

    paths: dict[str, str]
    answers: dict[str | None, list[int]]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    import torch
    import transformers

    folder = demo_folder()
    file = next(folder.glob("*.gguf")).name
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=file, dtype=torch.float32
    ).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file)
    ids = tokenizer(PROMPT, add_special_tokens=False, return_tensors="pt")["input_ids"]
    found = Reference({}, {None: answer_of(model, ids)})
    for seed, (name, (r, targets)) in enumerate(ADAPTERS.items()):
        path = tmp_path_factory.mktemp(name)
        changes = save_adapter(path, model, r, targets, seed)
        found.paths[name] = str(path)
        found.answers[name] = merged_answer(model, changes, ids)
    return found


def save_adapter(
    path: Path, model: Any, r: int, targets: tuple[str, ...], seed: int
) -> dict[str, Any]:
    """The change of each layer's weight by the layer's name."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    tensors, changes = {}, {}
    for name, module in model.named_modules():
        if name.rpartition(".")[2] not in targets:
            continue
        out_features, in_features = module.weight.shape
        a = torch.randn(r, in_features, generator=generator) * 0.03
        b = torch.randn(out_features, r, generator=generator) * 0.03
        start = f"base_model.model.{name}.lora_"
        tensors[f"{start}A.weight"], tensors[f"{start}B.weight"] = a, b
        changes[name] = 2 * b @ a
    save_file(tensors, path / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": r, "lora_alpha": 2 * r, "target_modules": list(targets)}
    (path / "adapter_config.json").write_text(json.dumps(config))
    return changes


def merged_answer(model: Any, changes: dict[str, Any], ids: Any) -> list[int]:
    for name, change in changes.items():
        model.get_submodule(name).weight.data += change
    answer = answer_of(model, ids)
    for name, change in changes.items():
        model.get_submodule(name).weight.data -= change
    return answer


def answer_of(model: Any, ids: Any) -> list[int]:
    import torch

    with torch.inference_mode():
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, eos_token_id=None,
            max_new_tokens=NUM_TOKENS, pad_token_id=0,
        )  # fmt: skip
    tokens: list[int] = out[0, ids.shape[1] :].tolist()
    return tokens


@pytest.fixture(scope="module")
def engine(reference: Reference) -> Iterator[Any]:
    first = reference.paths["first"]
    with sglang.Engine(
        model_path="demo",
        dtype="float32",
        max_total_tokens=4096,
        lora_paths={"first": first},
        lora_target_modules=["all"],
        max_lora_rank=8,
        max_loras_per_batch=1,
    ) as running:
        yield running


def tokens_of(reply: dict[str, Any]) -> list[int]:
    ids: list[int] = reply["output_ids"]
    return ids


def test_adapters_and_the_base_model_answer_side_by_side(engine: Any, reference: Reference) -> None:
    loaded = engine.load_lora_adapter("second", reference.paths["second"])
    assert loaded["success"] and loaded["loaded_adapters"] == reference.paths
    names = ["first", None, "second", "first", "second", None]
    for _ in range(2):  # the second time with cached prefixes
        replies = engine.generate([PROMPT] * len(names), GREEDY, lora_path=names)
        assert [tokens_of(reply) for reply in replies] == [reference.answers[n] for n in names]
    assert len({tuple(answer) for answer in reference.answers.values()}) == 3
    streamed = list(engine.generate(PROMPT, GREEDY, lora_path="first", stream=True))
    assert tokens_of(streamed[-1]) == reference.answers["first"]
    assert engine.unload_lora_adapter("second")["success"]
    with pytest.raises(ValueError, match="has never been loaded: second"):
        engine.generate(PROMPT, GREEDY, lora_path="second")


def test_a_key_that_equals_an_adapters_name_finds_nothing_of_it(
    engine: Any, reference: Reference
) -> None:
    engine.generate(PROMPT, GREEDY, lora_path="first")
    for field in ("extra_key", "cache_salt"):
        reply = engine.generate(PROMPT, GREEDY, **{field: "first"})
        assert tokens_of(reply) == reference.answers[None]
        engine.flush_cache()
        engine.generate(PROMPT, GREEDY, lora_path="first")
        assert (
            engine.generate(PROMPT, GREEDY, **{field: "first"})["meta_info"]["cached_tokens"] == 0
        )


def test_a_broken_adapter_is_refused_and_harms_nobody(
    engine: Any, reference: Reference, scratch: Path
) -> None:
    reply = engine.load_lora_adapter("broken", str(scratch))
    assert not reply["success"] and "adapter_config.json" in reply["error_message"]
    assert (
        tokens_of(engine.generate(PROMPT, GREEDY, lora_path="first")) == reference.answers["first"]
    )


def test_an_adapters_folder_is_taken_where_weights_are_updated(
    engine: Any, reference: Reference, scratch: Path
) -> None:
    path = reference.paths["second"]
    for _ in range(2):  # the second time in place of the first
        assert engine.update_weights_from_disk(path)["success"]
    assert tokens_of(engine.generate(PROMPT, GREEDY, lora_path=path)) == reference.answers["second"]
    assert engine.unload_lora_adapter(path)["success"]
    with pytest.raises(ValueError, match="adapter_config.json"):
        engine.update_weights_from_disk(str(scratch))


@pytest.fixture(scope="module")
def served(
    reference: Reference, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[processes.Server]:
    folder = tmp_path_factory.mktemp("served")
    flags = ["--dtype", "float32", "--lora-paths", f"first={reference.paths['first']}",
             "--lora-target-modules", "all", "--max-lora-rank", "8"]  # fmt: skip
    with (
        processes.engine(folder, *flags) as worker,
        processes.gateway(folder, [worker]) as gateway,
    ):
        yield gateway


def test_adapters_over_http(served: processes.Server, reference: Reference) -> None:
    def post(path: str, body: Any) -> tuple[int, Any]:
        status, reply, _ = processes.call(f"{served.url}{path}", body)
        return status, reply

    def ids(**fields: Any) -> list[int]:
        status, reply = post("/generate", {"text": PROMPT, "sampling_params": GREEDY, **fields})
        assert status == 200, reply
        return tokens_of(reply)

    adapter = {"lora_name": "second", "lora_path": reference.paths["second"]}
    status, reply = post("/load_lora_adapter", adapter)
    assert (status, reply["loaded_adapters"]) == (200, reference.paths)
    assert post("/load_lora_adapter", adapter)[0] == 400
    for name, wanted in reference.answers.items():
        assert ids(lora_path=name) == wanted
    assert ids(extra_key="first") == ids(cache_salt="first") == reference.answers[None]

    _, models, _ = processes.call(f"{served.url}/v1/models")
    base, *cards = models["data"]
    assert {card["id"]: (card["root"], card["parent"]) for card in cards} == {
        name: (path, base["id"]) for name, path in reference.paths.items()
    }
    texts = set()
    for model in (base["id"], f"{base['id']}:first", "first", "second"):
        body = {"model": model, "prompt": PROMPT, "max_tokens": NUM_TOKENS, "temperature": 0}
        status, reply = post("/v1/completions", body)
        assert status == 200, reply
        texts.add(reply["choices"][0]["text"])
    assert len(texts) == 3

    assert post("/unload_lora_adapter", {"lora_name": "second"})[1]["success"]
    status, reply = post("/generate", {"text": PROMPT, "lora_path": "second"})
    assert status == 400
    assert "Got LoRA adapter that has never been loaded: second" in reply["error"]["message"]
