"""Linear layers, plain and merged, and the product that suits few rows."""

import torch
import torch.nn.functional as F
from torch import nn

# Up to this many rows the product in blocks beats F.linear on CPUs with MKL, which runs a product
# of few rows on one thread or badly shared. Measured on two threads in float32, in times:
# 1 row 2.8 to 4, 8 rows 1.5 to 1.7, 32 rows 1.3 to 1.5, 128 rows 1.
_MAX_ROWS_IN_BLOCKS = 64
_BLOCK_COUNTS = (8, 4, 2)
# Below this many rows W xᵀ is up to twice as fast as x Wᵀ; from here on they are level, and the
# second needs no transposed copy.
_ROWS_WORTH_TRANSPOSING = 8


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
        self._blocks: torch.Tensor | None = None

    def rows_in_use(self) -> torch.Tensor:
        """The rows of the weight that take part in the product."""
        return self.weight

    def finish_loading(self) -> None:
        """Called once all weights are in place and on their device."""
        self._matrix = self.rows_in_use().detach()
        self._blocks = in_blocks(self._matrix)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # x: [num_tokens, in] -> [num_tokens, out]
        assert self._matrix is not None, "finish_loading comes before forward"
        if self._blocks is None or x.shape[0] > _MAX_ROWS_IN_BLOCKS:
            return F.linear(x, self._matrix, self.bias)
        y = product_in_blocks(x, self._blocks)
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


def in_blocks(weight: torch.Tensor) -> torch.Tensor | None:
    """The weight as equal blocks of rows, [blocks, out / blocks, in]; None where it is no gain."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return None
    if not torch.backends.mkl.is_available():
        return None
    out_features, in_features = weight.shape
    for count in _BLOCK_COUNTS:
        if out_features % count == 0:
            return weight.view(count, out_features // count, in_features)
    return None


def product_in_blocks(x: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """x Wᵀ as one batched product over the blocks of rows of W, which all threads share."""
    # x: [num_tokens, in], blocks: [n, out / n, in] -> [num_tokens, out]
    num_blocks, rows, in_features = blocks.shape
    num_tokens = x.shape[0]
    if num_tokens < _ROWS_WORTH_TRANSPOSING:
        columns = x.t().unsqueeze(0).expand(num_blocks, in_features, num_tokens)
        return torch.bmm(blocks, columns).view(num_blocks * rows, num_tokens).t().contiguous()
    tokens = x.unsqueeze(0).expand(num_blocks, num_tokens, in_features)
    products = torch.bmm(tokens, blocks.transpose(1, 2))
    return products.transpose(0, 1).reshape(num_tokens, num_blocks * rows)
