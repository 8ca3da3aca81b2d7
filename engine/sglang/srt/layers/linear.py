"""Linear layers, plain and merged."""

import torch
import torch.nn.functional as F
from torch import nn

from sglang.srt.layers.blocked_weight import BlockedWeight


class Linear(nn.Module):
    """y = x Wᵀ + b, with weights [out, in] as in checkpoints."""

    weight: nn.Parameter

    def __init__(self, in_features: int, out_features: int, bias: bool = False) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = new_parameter(torch.empty(out_features, in_features))
        self.bias = new_parameter(torch.empty(out_features)) if bias else None
        self._matrix: torch.Tensor | None = None
        self._blocked: BlockedWeight | None = None

    def rows_in_use(self) -> torch.Tensor:
        """The rows of the weight that take part in the product."""
        return self.weight

    def finish_loading(self) -> None:
        """Called once all weights are in place and on their device."""
        rows = self.rows_in_use().detach()
        if BlockedWeight.is_worth(rows):
            self._blocked = BlockedWeight(rows)
            self.drop_weight()
        else:
            self._matrix = rows

    def drop_weight(self) -> None:
        """The blocked copy is all that is needed from now on."""
        self.weight.data = self.weight.data.new_empty(0)

    @property
    def blocked_bytes(self) -> int:
        return self._blocked.nbytes if self._blocked is not None else 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # x: [num_tokens, in] -> [num_tokens, out]
        if self._blocked is not None:
            return self._blocked.product(x, self.bias)
        assert self._matrix is not None, "finish_loading comes before forward"
        return F.linear(x, self._matrix, self.bias)


class MergedLinear(Linear):
    """Several projections of the same input as one product; each is a block of rows.

    `shards` maps the id that a checkpoint's tensor is loaded under to its number of rows, in the
    order of the blocks.
    """

    def __init__(self, in_features: int, shards: dict[str, int], bias: bool = False) -> None:
        super().__init__(in_features, sum(shards.values()), bias)
        self.shards = shards
        for parameter in (self.weight, self.bias):
            if parameter is not None:
                parameter.weight_loader = self._load_shard

    def _load_shard(self, parameter: nn.Parameter, loaded: torch.Tensor, shard: str) -> None:
        start = 0
        for name, rows in self.shards.items():
            if name == shard:
                copy_checked(parameter.data[start : start + rows], loaded)
                return
            start += rows
        raise AssertionError(f"no shard {shard!r} among {list(self.shards)}")


class QKVLinear(MergedLinear):
    """Query, key and value projections: shards `q`, `k`, `v`."""

    def __init__(
        self, hidden_size: int, head_dim: int, num_heads: int, num_kv_heads: int, bias: bool
    ) -> None:
        kv_size = num_kv_heads * head_dim
        super().__init__(hidden_size, {"q": num_heads * head_dim, "k": kv_size, "v": kv_size}, bias)


class GateUpLinear(MergedLinear):
    """Gate and up projections of a gated MLP: shards `gate`, `up`."""

    def __init__(self, hidden_size: int, intermediate_size: int, bias: bool) -> None:
        super().__init__(hidden_size, {"gate": intermediate_size, "up": intermediate_size}, bias)


def new_parameter(data: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(data, requires_grad=False)


def copy_checked(target: torch.Tensor, loaded: torch.Tensor) -> None:
    """Copies, casting to the target's dtype; shapes must agree."""
    if target.shape != loaded.shape:
        raise ValueError(f"expected shape {list(target.shape)}, found {list(loaded.shape)}")
    target.copy_(loaded)
