"""From the tensors of a checkpoint to the parameters of a model."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from sglang.srt.layers.linear import copy_checked

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PackedWeight:
    """`checkpoint`, a part of a tensor's name, is the block `shard` of the parameter `merged`."""

    merged: str
    checkpoint: str
    shard: str


def expected_weights(model: nn.Module, packed: tuple[PackedWeight, ...]) -> dict[str, str]:
    """Every tensor name that a checkpoint must have, with the parameter it goes to."""
    expected: dict[str, str] = {}
    for name in dict(model.named_parameters()):
        parts = [entry for entry in packed if f".{entry.merged}." in name]
        for entry in parts:
            expected[name.replace(f".{entry.merged}.", f".{entry.checkpoint}.")] = name
        if not parts:
            expected[name] = name
    return expected


def load_parameters(
    model: nn.Module,
    weights: Iterable[tuple[str, torch.Tensor]],
    packed: tuple[PackedWeight, ...],
    optional: frozenset[str] = frozenset(),
) -> None:
    """Copies each tensor to where it belongs.

    Unknown tensors are skipped with a warning, those in `optional` without one. A needed tensor
    that does not come raises ValueError with its name, as does one of the wrong shape.
    """
    parameters = dict(model.named_parameters())
    expected = expected_weights(model, packed)
    missing = dict(expected)
    for name, tensor in weights:
        target = expected.get(name)
        if target is None:
            if name not in optional:
                logger.warning("Weight %r is unknown to %s; skipped.", name, type(model).__name__)
            continue
        try:
            _load(parameters[target], name, tensor, packed)
        except ValueError as error:
            raise ValueError(f"weight {name!r} does not fit: {error}") from error
        missing.pop(name, None)
    if missing:
        names = sorted(missing)
        shown = ", ".join(map(repr, names[:8])) + (" …" if len(names) > 8 else "")
        raise ValueError(
            f"{len(names)} weights that {type(model).__name__} needs are missing: {shown}. "
            "The files are incomplete or belong to another model."
        )


def _load(
    parameter: nn.Parameter, name: str, tensor: torch.Tensor, packed: tuple[PackedWeight, ...]
) -> None:
    loader = getattr(parameter, "weight_loader", None)
    if loader is None:
        copy_checked(parameter.data, tensor)
        return
    shard = next(entry.shard for entry in packed if f".{entry.checkpoint}." in name)
    loader(parameter, tensor, shard)
