"""An adapter that does not fit is refused when it is loaded, with the reason, and harms nobody."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.lora.lora_config import LoRAConfig
from sglang.srt.lora.lora_manager import LoRAManager, LoRAOptions, LoRAUpdateResult
from sglang.srt.lora.lora_registry import LoRARef
from sglang.srt.model_loader.loader import load_model
from tests.unit.srt.lora.adapters import (
    ALL,
    WEIGHTS,
    edit_config,
    edit_tensors,
    save_adapter,
    save_model,
)

FLOAT, CPU = torch.float32, torch.device("cpu")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreTrainedModel]:
    folder = tmp_path_factory.mktemp("model")
    return folder, save_model(folder)


@pytest.fixture(scope="module")
def manager(reference: tuple[Path, PreTrainedModel]) -> LoRAManager:
    return manager_of(reference[0], max_lora_rank=4, target_modules=frozenset(["all"]))


@pytest.fixture
def adapter(reference: tuple[Path, PreTrainedModel], tmp_path: Path) -> Path:
    return save_adapter(tmp_path / "adapter", reference[1])


def manager_of(folder: Path, **options: Any) -> LoRAManager:
    model = load_model(ModelConfig.from_path(folder), "auto", FLOAT, CPU)
    return LoRAManager(model, LoRAOptions(**options), FLOAT, CPU)


def load(manager: LoRAManager, folder: Path, **options: Any) -> LoRAUpdateResult:
    return manager.load_lora_adapter(LoRARef(lora_name="x", lora_path=str(folder), **options))


def truncate(folder: Path) -> None:
    file = folder / WEIGHTS
    file.write_bytes(file.read_bytes()[:-100])


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "another_rank": (lambda f: edit_config(f, r=3), r"lora_A of .*\[4, 96\], but r = 3"),
    "a_larger_rank": (lambda f: edit_config(f, r=8), "its rank is 8, and places .* rank 4"),
    "no_a": (lambda f: edit_tensors(f, **{"1.self_attn.q_proj.lora_A": None}), "lacks lora_A of"),
    "no_b": (lambda f: edit_tensors(f, **{"2.mlp.up_proj.lora_B": None}), "lacks lora_B of"),
    "another_model": (
        lambda f: edit_tensors(f, **{"o_proj.lora_A": torch.ones(4, 95)}), r"\[4, 95\]"
    ),
    "not_a_number": (
        lambda f: edit_tensors(f, **{"o_proj.lora_A": torch.full((4, 96), torch.nan)}),
        "infinite numbers",
    ),
    "truncated": (truncate, "truncated or damaged"),
    "no_weights": (lambda f: (f / WEIGHTS).unlink(), "holds neither"),
    "more_than_it_says": (
        lambda f: edit_config(f, target_modules=["q_proj"]), "target_modules does not cover"
    ),
    "embedding": (
        lambda f: edit_config(f, target_modules=["embed_tokens", "q_proj"]),
        "embed_tokens, which adapters cannot change",
    ),
    "head": (lambda f: edit_config(f, target_modules=["lm_head"]), "lm_head, which adapters"),
    "dora": (lambda f: edit_config(f, use_dora=True), "use_dora is not served"),
    "ranks_of_layers": (lambda f: edit_config(f, rank_pattern={"q": 8}), "rank_pattern is not"),
    "bias": (lambda f: edit_config(f, bias="all"), "bias must be one of 'none'"),
    "pissa": (lambda f: edit_config(f, init_lora_weights="pissa"), "init_lora_weights"),
    "another_method": (lambda f: edit_config(f, peft_type="IA3"), "peft_type must be"),
    "rank_0": (lambda f: edit_config(f, r=0), "r must be a whole number above 0"),
    "no_alpha": (lambda f: edit_config(f, lora_alpha=None), "lora_alpha must be a number"),
    "a_pattern": (lambda f: edit_config(f, target_modules=".*q_proj"), "must be a list of names"),
    "no_config": (lambda f: (f / "adapter_config.json").unlink(), "holds no adapter_config"),
    "no_json": (lambda f: (f / "adapter_config.json").write_text("{"), "not valid JSON"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_adapter_is_refused_with_the_reason(
    manager: LoRAManager, adapter: Path, fault: str
) -> None:
    damage, reason = BROKEN[fault]
    damage(adapter)
    result = load(manager, adapter)
    assert not result.success and not result.loaded_adapters
    with pytest.raises(ValueError, match=f"^LoRA adapter 'x' cannot be loaded: .*{reason}"):
        raise ValueError(result.error_message)


def test_what_is_no_folder_is_refused(manager: LoRAManager, tmp_path: Path) -> None:
    result = load(manager, tmp_path / "nowhere")
    assert "is no folder" in str(result.error_message)


def test_other_settings_of_peft_change_nothing(manager: LoRAManager, adapter: Path) -> None:
    edit_config(adapter, task_type="CAUSAL_LM", lora_dropout=0.1, modules_to_save=None, revision="")
    result = load(manager, adapter)
    assert result.success and result.loaded_adapters == {"x": str(adapter)}
    assert manager.unload_lora_adapter(manager.refs[0].lora_id).success
    assert not manager.refs


def test_weights_saved_by_torch_are_read_too(manager: LoRAManager, adapter: Path) -> None:
    from safetensors.torch import load_file

    tensors = load_file(adapter / WEIGHTS)
    (adapter / WEIGHTS).unlink()
    torch.save(tensors, adapter / "adapter_model.bin")
    assert load(manager, adapter).success
    manager.unload_lora_adapter(manager.refs[0].lora_id)


def test_all_linear_and_longer_names_cover_layers(adapter: Path) -> None:
    edit_config(adapter, target_modules="all-linear")
    assert LoRAConfig.from_path(str(adapter)).covers("model.layers.0.mlp.up_proj")
    edit_config(adapter, target_modules=["self_attn.q_proj"])
    config = LoRAConfig.from_path(str(adapter))
    assert config.covers("model.layers.0.self_attn.q_proj")
    assert not config.covers("model.layers.0.self_attn.k_proj")


def test_places_are_as_large_as_the_adapters_at_the_start(
    reference: tuple[Path, PreTrainedModel], tmp_path: Path
) -> None:
    folder, model = reference
    first = save_adapter(tmp_path / "first", model, r=4, targets=("q_proj",))
    starting = LoRARef(lora_name="first", lora_path=str(first))
    manager = manager_of(folder, lora_paths=(starting,))
    assert manager.max_lora_rank == 4
    wider = save_adapter(tmp_path / "wider", model, r=4, targets=("q_proj", "up_proj"))
    assert "changes up_proj, and places here are for q_proj" in str(
        load(manager, wider).error_message
    )
    larger = save_adapter(tmp_path / "larger", model, r=8, targets=("q_proj",))
    assert "--max-lora-rank 8" in str(load(manager, larger).error_message)
    assert [ref.lora_name for ref in manager.refs] == ["first"]


def test_one_place_stays_free_of_pinned_adapters(
    reference: tuple[Path, PreTrainedModel], adapter: Path
) -> None:
    manager = manager_of(
        reference[0], max_lora_rank=4, target_modules=frozenset(ALL), max_loras_per_batch=2
    )
    assert load(manager, adapter, pinned=True).success
    assert "1 adapters are pinned already" in str(load(manager, adapter, pinned=True).error_message)
    assert load(manager, adapter).success
