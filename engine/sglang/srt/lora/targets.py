"""The layers of a model that adapters may change, by the paths that checkpoints give them."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from sglang.srt.arg_groups.lora import TARGET_MODULES
from sglang.srt.layers.linear import Linear, MergedLinear
from sglang.srt.layers.moe import MixtureOfExperts
from sglang.srt.layers.vocab_embedding import LMHead


@dataclass(frozen=True)
class Target:
    """A projection: a linear layer of the model, or a block of rows of one."""

    path: str  # as checkpoints name it
    module: Linear
    first_row: int
    num_rows: int

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def rows(self) -> slice:
        return slice(self.first_row, self.first_row + self.num_rows)


def find_targets(model: nn.Module) -> dict[str, Target]:
    """By path. Experts are left out: each sees only some of a pass' tokens."""
    found: dict[str, Target] = {}
    experts = tuple(
        f"{path}." for path, module in model.named_modules() if isinstance(module, MixtureOfExperts)
    )
    for path, module in model.named_modules():
        if not isinstance(module, Linear) or isinstance(module, LMHead):
            continue
        if path.startswith(experts):
            continue
        for target in _targets_of(path, module):
            if target.name in TARGET_MODULES:
                found[target.path] = target
    return found


def _targets_of(path: str, module: Linear) -> list[Target]:
    if not isinstance(module, MergedLinear):
        return [Target(path, module, 0, module.out_features)]
    parent = path.rpartition(".")[0]
    targets, first_row = [], 0
    for shard, num_rows in module.shards.items():
        targets.append(Target(f"{parent}.{shard}_proj", module, first_row, num_rows))
        first_row += num_rows
    return targets


def names_of(targets: Iterable[Target]) -> list[str]:
    """Of the projections, each once."""
    there = {target.name for target in targets}
    return [name for name in TARGET_MODULES if name in there]
