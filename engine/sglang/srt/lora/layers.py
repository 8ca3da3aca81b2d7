"""Linear layers as adapters change them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from sglang.srt.lora.targets import Target

Product = Callable[[torch.Tensor], torch.Tensor]
# apply(product, x) = product(x), perhaps in pieces of rows
Apply = Callable[[Product, torch.Tensor], torch.Tensor]


@dataclass
class PassRows:
    """Which tokens of the pass at hand belong to which place of the pool; base ones to none."""

    groups: list[tuple[int, torch.Tensor | None]] = field(default_factory=list)  # None: all tokens


class PoolLayer:
    """The weights of one projection for each place of the pool."""

    def __init__(
        self,
        target: Target,
        num_slots: int,
        max_rank: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.target = target
        in_features = target.module.in_features
        self.a = torch.zeros(num_slots, max_rank, in_features, dtype=dtype, device=device)
        self.b = torch.zeros(num_slots, target.num_rows, max_rank, dtype=dtype, device=device)
        self.ranks = [0] * num_slots  # 0: the adapter there leaves this projection as it is

    @property
    def nbytes(self) -> int:
        return self.a.nbytes + self.b.nbytes

    def change(self, slot: int, x: torch.Tensor) -> torch.Tensor:
        # x: [num_rows, in] -> [num_rows, out]
        rank = self.ranks[slot]
        return x @ self.a[slot, :rank].T @ self.b[slot, :, :rank].T


class AdaptedForward:
    """Stands in for the `forward` of a linear layer. A pass without adapters costs nothing."""

    def __init__(
        self, forward: Product, layers: Sequence[PoolLayer], rows: PassRows, apply: Apply
    ) -> None:
        self._forward, self._layers, self._rows, self._apply = forward, layers, rows, apply

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        # x: [num_tokens, in] -> [num_tokens, out]
        y = self._forward(x)
        for slot, rows in self._rows.groups:
            changed = [layer for layer in self._layers if layer.ranks[slot]]
            own = x if rows is None or not changed else x.index_select(0, rows)
            for layer in changed:
                change = self._apply(partial(layer.change, slot), own)
                block = y[:, layer.target.rows]
                if rows is None:
                    block += change
                else:
                    block.index_add_(0, rows, change)
        return y
