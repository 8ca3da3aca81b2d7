"""Linear layers, plain and merged; how checkpoint tensors land in them; the product for few rows."""

import torch
import torch.nn.functional as F
from torch import nn

# Up to this many rows the split product beats F.linear on CPUs with MKL (measured 2.8 times at
# 1 row, 2 times at 8, level at 32 for weights of 576 x 3072 in float32 on two threads).
_MAX_SPLIT_ROWS = 32
_SPLITS = (16, 8, 4, 2)


class Linear(nn.Module):
    """y = x Wᵀ + b, with weights [out, in] as in checkpoints."""

    weight: nn.Parameter

    def __init__(self, in_features: int, out_features: int, bias: bool = False) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = new_parameter(torch.empty(out_features, in_features))
        self.bias = new_parameter(torch.empty(out_features)) if bias else None
        self._matrix: torch.Tensor = self.weight
        self._blocks: torch.Tensor | None = None

    def rows_in_use(self) -> torch.Tensor:
        """The rows of the weight that take part in the product."""
        return self.weight

    def finish_loading(self) -> None:
        """Called once all weights are in place and on their device."""
        self._matrix = self.rows_in_use()
        self._blocks = split_rows(self._matrix)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # x: [num_tokens, in] -> [num_tokens, out]
        if self._blocks is None or x.shape[0] > _MAX_SPLIT_ROWS:
            return F.linear(x, self._matrix, self.bias)
        y = split_product(x, self._blocks)
        return y if self.bias is None else y + self.bias


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


def split_rows(weight: torch.Tensor) -> torch.Tensor | None:
    """The weight as equal blocks of rows, [blocks, out / blocks, in]; None where that is no gain."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return None
    if not torch.backends.mkl.is_available():
        return None
    out_features, in_features = weight.shape
    for count in _SPLITS:
        if out_features % count == 0:
            return weight.view(count, out_features // count, in_features)
    return None


def split_product(x: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """x Wᵀ as one batched product over the blocks of rows of W.

    MKL runs a product with few columns on one thread; a batch of them it shares out.
    """
    # x: [num_tokens, in], blocks: [n, out / n, in] -> [num_tokens, out], a transposed view
    num_blocks, rows, in_features = blocks.shape
    num_tokens = x.shape[0]
    columns = x.t().unsqueeze(0).expand(num_blocks, in_features, num_tokens)
    return torch.bmm(blocks, columns).view(num_blocks * rows, num_tokens).t()
