"""A weight matrix in oneDNN's blocked layout, for products on a CPU."""

import torch


class BlockedWeight:
    """W of y = x Wᵀ + b. Beside `F.linear` on two threads of an x86 CPU with AVX-512, in times:
    1 row 1.1, 8 rows 4, 32 rows 2.7, 512 rows 2.4.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        # weight: [out, in]; `is_worth` was asked before
        self.nbytes = weight.nbytes
        self._blocked = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        # One row alone in float32 takes another way through oneDNN, whose last bits differ. With
        # a row beside it, each row's result is the same in a batch of any size.
        self._doubles_one_row = weight.dtype == torch.float32

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
        if num_tokens == 1 and self._doubles_one_row:
            x = x.expand(2, -1)
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            x.contiguous(), self._blocked, bias, "none", [], ""
        )
        return y[:num_tokens]
