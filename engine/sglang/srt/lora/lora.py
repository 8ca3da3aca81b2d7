"""An adapter's weights, read and checked."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from sglang.srt.lora.lora_config import LoRAConfig
from sglang.srt.lora.targets import Target, names_of

WEIGHT_FILES = ("adapter_model.safetensors", "adapter_model.bin")
_TENSOR = re.compile(
    r"(?:base_model\.model\.)?(?P<path>.+)\.lora_(?P<side>[AB])(?:\.default)?\.weight"
)


@dataclass(frozen=True)
class LoRALayer:
    """The change of one projection: y += (x aᵀ) bᵀ, where b has the adapter's scaling in it."""

    a: torch.Tensor  # [r, in]
    b: torch.Tensor  # [out, r]


@dataclass(frozen=True)
class LoRAAdapter:
    """A change of some projections of a model, in host memory."""

    config: LoRAConfig
    layers: Mapping[str, LoRALayer]  # by the projection's path

    @classmethod
    def load(
        cls, config: LoRAConfig, targets: Mapping[str, Target], dtype: torch.dtype
    ) -> "LoRAAdapter":
        """`targets` are those of the model. ValueError: the files do not fit it, or are damaged."""
        wanted = _wanted(config, targets)
        sides: dict[str, dict[str, torch.Tensor]] = {path: {} for path in wanted}
        for name, tensor in _tensors(Path(config.path)):
            path, side = _address(name, config)
            if path not in sides:
                raise ValueError(
                    f"{config.path} has a tensor {name!r}, which target_modules does not cover or "
                    "this model has no place for"
                )
            sides[path][side] = tensor
        return cls(
            config,
            {path: _layer(targets[path], sides[path], config, dtype) for path in wanted},
        )


def _wanted(config: LoRAConfig, targets: Mapping[str, Target]) -> list[str]:
    if not config.targets_all:
        for pattern in config.target_modules:
            if not any(path == pattern or path.endswith(f".{pattern}") for path in targets):
                raise ValueError(
                    f"{config.path}: target_modules names {pattern}, which adapters cannot change "
                    f"in this model; they change {', '.join(names_of(targets.values()))}"
                )
    return [path for path in targets if config.covers(path)]


def _tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    file = next((folder / name for name in WEIGHT_FILES if (folder / name).is_file()), None)
    if file is None:
        raise ValueError(f"{folder} holds neither {' nor '.join(WEIGHT_FILES)}")
    try:
        if file.suffix == ".safetensors":
            tensors = load_file(file)
        else:
            tensors = torch.load(file, map_location="cpu", weights_only=True)
    except (SafetensorError, OSError, RuntimeError, EOFError, ValueError) as error:
        raise ValueError(f"{file} is truncated or damaged ({error}); copy it again") from error
    if not isinstance(tensors, dict):
        raise ValueError(f"{file} must hold tensors by name, found {type(tensors).__name__}")
    yield from tensors.items()


def _address(name: str, config: LoRAConfig) -> tuple[str, str]:
    match = _TENSOR.fullmatch(name)
    if match is None:
        raise ValueError(
            f"{config.path} has a tensor {name!r}; served are lora_A.weight and lora_B.weight of "
            "linear layers"
        )
    return match["path"], match["side"]


def _layer(
    target: Target, sides: Mapping[str, torch.Tensor], config: LoRAConfig, dtype: torch.dtype
) -> LoRALayer:
    shapes = {"A": [config.r, target.module.in_features], "B": [target.num_rows, config.r]}
    for side, shape in shapes.items():
        if side not in sides:
            raise ValueError(f"{config.path} lacks lora_{side} of {target.path}")
        if list(sides[side].shape) != shape:
            raise ValueError(
                f"{config.path}: lora_{side} of {target.path} has shape "
                f"{list(sides[side].shape)}, but r = {config.r} and this model want {shape}"
            )
        if not torch.isfinite(sides[side]).all():
            raise ValueError(f"{config.path}: lora_{side} of {target.path} has infinite numbers")
    return LoRALayer(
        sides["A"].to(dtype).contiguous(),
        (sides["B"].float() * config.scaling).to(dtype).contiguous(),
    )
