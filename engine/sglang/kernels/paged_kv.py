"""What attention kernels share: where keys and values lie, and what is attended to."""

from typing import NamedTuple

import torch

from sglang.kernels.dispatch import power_of_two

LEAST_DOT = 16  # rows and columns of the smallest product


class Scoring(NamedTuple):
    """How a query weighs a key."""

    scaling: float
    window: int = -1  # tokens that are attended to, the query's own among them; -1: all
    cap: float = 0.0  # scores become cap * tanh(score / cap); 0: they stay

    def of(self, scores: torch.Tensor) -> torch.Tensor:
        """The scores of products of queries and keys, before masks."""
        scores = scores * self.scaling
        return self.cap * torch.tanh(scores / self.cap) if self.cap > 0 else scores

    def hidden(self, num_queries: int, num_keys: int, device: torch.device) -> torch.Tensor:
        """True where a key is not attended to. The queries are the last tokens of the sequence."""
        # -> [num_queries, num_keys] bool
        own = torch.arange(num_keys - num_queries, num_keys, device=device).unsqueeze(1)
        keys = torch.arange(num_keys, device=device)
        hidden = keys > own
        return hidden if self.window < 0 else hidden | (keys <= own - self.window)


class PagedKV(NamedTuple):
    """The sequences of a batch in one layer's pool. `lens` counts the tokens of this pass too.

    The pool's numbers may be of another type than the queries. Values may be a part of the keys.
    """

    keys: torch.Tensor  # [slots, kv_heads, head_dim]
    values: torch.Tensor  # [slots, kv_heads, v_head_dim]
    table: torch.Tensor  # [rows, max_len] int32, the slot of each token
    rows: torch.Tensor  # [batch_size] int64, rows of the table
    lens: torch.Tensor  # [batch_size] int64

    def check(self) -> None:
        """What the Triton kernels rely on."""
        assert self.keys.stride(2) == self.values.stride(2) == 1, "numbers of a head are neighbours"
        assert self.keys.shape[:2] == self.values.shape[:2]
        assert self.table.stride(1) == 1

    def strides(self) -> tuple[int, int, int, int, int]:
        """From row to row of the table, then from slot to slot and head to head of both buffers."""
        keys, values = self.keys.stride(), self.values.stride()
        return self.table.stride(0), keys[0], keys[1], values[0], values[1]

    def sequence(self, request: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one request, each [kv_heads, length, …], in float32."""
        slots = self.table[self.rows[request], :length].long()
        keys, values = (
            buffer.index_select(0, slots).float().transpose(0, 1) for buffer in self[:2]
        )
        return keys, values


class Blocks(NamedTuple):
    """Shapes of a program's blocks, so that it fits into 99 KiB beside its own.

    Keys whose width is no power of two and large are taken in two pieces; padding one piece to the
    next power would nearly double them.
    """

    DIM: int
    REST: int  # width of the second piece, 0: there is none
    V_DIM: int
    BLOCK: int  # tokens of a sequence at a time
    num_stages: int

    @classmethod
    def of(cls, head_dim: int, v_head_dim: int, dtype: torch.dtype) -> "Blocks":
        dim, rest = power_of_two(head_dim, LEAST_DOT), 0
        if head_dim > 256 and dim != head_dim:
            dim //= 2
            rest = power_of_two(head_dim - dim, LEAST_DOT)
        row = max(dim, power_of_two(v_head_dim, LEAST_DOT)) * dtype.itemsize
        block = 64 if row <= 256 else 32 if row <= 512 else 16
        return cls(dim, rest, power_of_two(v_head_dim, LEAST_DOT), block, 2 if row <= 512 else 1)


def dot_precision(dtype: torch.dtype) -> str:
    """Of products of numbers widened to float32. TF32 holds 16-bit numbers without loss."""
    return "ieee" if dtype == torch.float32 else "tf32"
