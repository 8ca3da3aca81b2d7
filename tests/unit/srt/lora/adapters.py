"""Random adapters of a tiny model, and what the model would be with one merged into it."""

import copy
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from tests.unit.srt.models.reference import save_reference

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
WEIGHTS = "adapter_model.safetensors"


def save_model(folder: Path) -> PreTrainedModel:
    return save_reference(folder, LlamaConfig, LlamaForCausalLM, num_key_value_heads=2)


def save_adapter(
    folder: Path,
    model: PreTrainedModel,
    *,
    seed: int = 0,
    r: int = 4,
    targets: tuple[str, ...] = ALL,
    **config: Any,
) -> Path:
    """In PEFT's form."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name.rpartition(".")[2] in targets:
            start = f"base_model.model.{name}.lora_"
            a = torch.randn(r, module.in_features, generator=generator)
            b = torch.randn(module.out_features, r, generator=generator)
            tensors[f"{start}A.weight"], tensors[f"{start}B.weight"] = a * 0.2, b * 0.2
    save_file(tensors, folder / WEIGHTS)
    values = {"peft_type": "LORA", "r": r, "lora_alpha": 2 * r, "target_modules": list(targets)}
    (folder / "adapter_config.json").write_text(json.dumps({**values, **config}))
    return folder


def merged(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """W + scaling · B · A, by hand."""
    config = json.loads((folder / "adapter_config.json").read_text())
    divisor = config["r"] ** 0.5 if config.get("use_rslora") else config["r"]
    tensors = load_file(folder / WEIGHTS)
    changed = copy.deepcopy(model)
    for name, module in changed.named_modules():
        start = f"base_model.model.{name}.lora_"
        if f"{start}A.weight" in tensors:
            change = tensors[f"{start}B.weight"] @ tensors[f"{start}A.weight"]
            module.weight.data += config["lora_alpha"] / divisor * change
    return changed


def edit_config(folder: Path, **values: Any) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def edit_tensors(folder: Path, **changes: torch.Tensor | None) -> None:
    """Replaces tensors whose names contain a key; None takes them out."""
    tensors = load_file(folder / WEIGHTS)
    for part, tensor in changes.items():
        for name in [name for name in tensors if part in name]:
            if tensor is None:
                del tensors[name]
            else:
                tensors[name] = tensor.clone()
    save_file(tensors, folder / WEIGHTS)
