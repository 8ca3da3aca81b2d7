"""What an adapter says about itself, in PEFT's `adapter_config.json`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang.srt.configs.json_file import read_json

CONFIG_FILE = "adapter_config.json"
ALL_LINEAR = "all-linear"
# Settings that would change what is computed, with the values that leave it as it is.
_ONLY = {
    "peft_type": ("LORA", None),
    "bias": ("none", None),
    "init_lora_weights": (True, False, None, "gaussian", "orthogonal", "eva"),
}
_OFF = (
    "alpha_pattern",
    "exclude_modules",
    "fan_in_fan_out",
    "layer_replication",
    "layers_pattern",
    "layers_to_transform",
    "lora_bias",
    "modules_to_save",
    "rank_pattern",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_dora",
    "use_qalora",
)


@dataclass(frozen=True)
class LoRAConfig:
    """The change of a linear layer's weight is `scaling` · B · A, where A has `r` rows."""

    r: int
    lora_alpha: float
    target_modules: tuple[str, ...]  # names of layers, or ends of their paths
    path: str
    use_rslora: bool = False

    @classmethod
    def from_path(cls, path: str) -> "LoRAConfig":
        """Reads an adapter's folder. ValueError: what is not there, or is not served."""
        folder = Path(path).expanduser()
        if not folder.is_dir():
            raise ValueError(f"{path} is no folder; an adapter is a folder with {CONFIG_FILE}")
        file = folder / CONFIG_FILE
        if not file.is_file():
            raise ValueError(f"{path} holds no {CONFIG_FILE}, so it is no adapter")
        given = read_json(file)
        _refuse_what_is_not_served(given, file)
        return cls(
            r=_rank(given, file),
            lora_alpha=_alpha(given, file),
            target_modules=_targets(given, file),
            path=str(folder),
            use_rslora=bool(given.get("use_rslora")),
        )

    @property
    def scaling(self) -> float:
        return self.lora_alpha / (math.sqrt(self.r) if self.use_rslora else self.r)

    @property
    def targets_all(self) -> bool:
        return self.target_modules == (ALL_LINEAR,)

    def covers(self, module: str) -> bool:
        """Whether the layer at this path is to be changed."""
        return self.targets_all or any(
            module == target or module.endswith(f".{target}") for target in self.target_modules
        )


def _refuse_what_is_not_served(given: Mapping[str, Any], file: Path) -> None:
    for name, allowed in _ONLY.items():
        value = given.get(name)
        if value not in allowed:
            shown = ", ".join(repr(each) for each in allowed if each is not None)
            raise ValueError(f"{file}: {name} must be one of {shown}; got {value!r}")
    for name in _OFF:
        if given.get(name):
            raise ValueError(f"{file}: {name} is not served; got {given[name]!r}")


def _rank(given: Mapping[str, Any], file: Path) -> int:
    rank = given.get("r")
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        raise ValueError(f"{file}: r must be a whole number above 0, got {rank!r}")
    return rank


def _alpha(given: Mapping[str, Any], file: Path) -> float:
    alpha = given.get("lora_alpha")
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not math.isfinite(alpha):
        raise ValueError(f"{file}: lora_alpha must be a number, got {alpha!r}")
    return float(alpha)


def _targets(given: Mapping[str, Any], file: Path) -> tuple[str, ...]:
    targets = given.get("target_modules")
    if targets == ALL_LINEAR:
        return (ALL_LINEAR,)
    if isinstance(targets, list) and targets and all(isinstance(t, str) and t for t in targets):
        return tuple(sorted(set(targets)))
    raise ValueError(
        f"{file}: target_modules must be a list of names such as q_proj, or {ALL_LINEAR!r}; "
        f"got {targets!r}"
    )
