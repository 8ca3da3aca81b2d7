"""A weight matrix in oneDNN's blocked layout, for products on a CPU."""

import torch

# (up to so many rows, a multiple of so many is computed)
_ROW_STEPS = ((4, 2), (64, 8), (512, 32))
_LARGE_STEP = 128


class BlockedWeight:
    """W of y = x Wᵀ + b. Beside `F.linear` on two threads of an x86 CPU with AVX-512, in times:
    1 row 1.1, 8 rows 4, 32 rows 2.7, 512 rows 2.4.

    oneDNN compiles a product for each number of rows and keeps it, 0.7 MB each: rows are filled up
    to few numbers, or mixed traffic would take a gigabyte. One row alone takes another way through
    it, whose last bits differ; with a row beside it, a row's result is the same in any batch.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        # weight: [out, in]; `is_worth` was asked before
        self.nbytes = weight.nbytes
        self._blocked = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())

    @staticmethod
    def is_worth(weight: torch.Tensor) -> bool:
        """Whether this machine has such products for the weight's type."""
        if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
            return False
        if weight.dtype == torch.bfloat16:
            return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        return weight.dtype == torch.float32

    def product(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        # x: [num_tokens, in] -> [num_tokens, out]
        num_tokens = x.shape[0]
        num_rows = rows_computed(num_tokens)
        if num_rows != num_tokens:
            x = torch.nn.functional.pad(x, (0, 0, 0, num_rows - num_tokens))
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            x.contiguous(), self._blocked, bias, "none", [], ""
        )
        return y[:num_tokens]


def rows_computed(num_tokens: int) -> int:
    """The least of few numbers of rows that holds the tokens."""
    step = next((step for most, step in _ROW_STEPS if num_tokens <= most), _LARGE_STEP)
    return -(-num_tokens // step) * step
