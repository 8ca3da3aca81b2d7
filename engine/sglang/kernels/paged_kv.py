"""What attention kernels share: where keys and values lie, and how products are taken."""

from typing import NamedTuple

import torch


class PagedKV(NamedTuple):
    """The sequences of a batch in one layer's pool. `lens` counts the tokens of this pass too."""

    keys: torch.Tensor  # [slots, kv_heads, head_dim]
    values: torch.Tensor  # like keys
    table: torch.Tensor  # [rows, max_len] int32, the slot of each token
    rows: torch.Tensor  # [batch_size] int64, rows of the table
    lens: torch.Tensor  # [batch_size] int64

    def check(self) -> None:
        """What the Triton kernels rely on."""
        head_dim = self.keys.shape[-1]
        assert self.keys.stride()[1:] == (head_dim, 1), "the heads of a slot lie side by side"
        assert self.keys.stride() == self.values.stride()
        assert self.table.stride(1) == 1

    def sequence(self, request: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one request, each [kv_heads, length, head_dim], in float32."""
        slots = self.table[self.rows[request], :length].long()
        keys, values = (buffer[slots].transpose(0, 1).float() for buffer in self[:2])
        return keys, values


def block_len(dim: int, dtype: torch.dtype) -> int:
    """Tokens that a program takes at a time, so that they fit into 99 KiB beside its own."""
    row = dim * dtype.itemsize
    return 64 if row <= 256 else 32 if row <= 512 else 16


def dot_precision(dtype: torch.dtype) -> str:
    """Of products of numbers widened to float32. TF32 holds 16-bit numbers without loss."""
    return "ieee" if dtype == torch.float32 else "tf32"
