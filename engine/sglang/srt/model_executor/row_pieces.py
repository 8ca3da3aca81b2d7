"""Row by row operations in pieces of one fixed size, so that no row's bits depend on the others."""

from collections.abc import Callable
from typing import Any

import torch

# Rows of every product. Beside products of the rows at hand, in times, float32 on two threads:
# 1 row 1.8, 8 rows 1.7, 32 rows 1.5, 512 rows 1.3.
PRODUCT_ROWS = 16
# Torch computes fewer numbers in one thread, and then treats the columns of all rows alike.
_ONE_THREAD = 32768

Operation = Callable[[torch.Tensor], Any]


def in_tiles(operation: Operation, x: torch.Tensor) -> Any:
    """A product, `PRODUCT_ROWS` rows at a time: libraries choose another order of summing for other
    numbers of rows."""
    # x: [num_rows, ...] -> [num_rows, ...], or a tuple of such
    num_rows = len(x)
    missing = -num_rows % PRODUCT_ROWS
    if missing:
        x = torch.cat((x, x.new_zeros(missing, *x.shape[1:])))
    return _joined([operation(tile) for tile in x.split(PRODUCT_ROWS)], num_rows)


def in_one_thread(operation: Operation, x: torch.Tensor) -> Any:
    """An operation on single numbers, on as many rows at a time as one thread computes: vector and
    scalar code differ in the last bit, and where threads meet scalar code fills the gap."""
    # x: [num_rows, size] -> [num_rows, ...]
    most = max((_ONE_THREAD - 1) // max(x.shape[1], 1), 1)
    return _joined([operation(rows) for rows in x.split(most)], len(x))


def one_by_one(operation: Operation, x: torch.Tensor) -> Any:
    """For what is both."""
    # x: [num_rows, ...] -> [num_rows, ...]
    return _joined([operation(row) for row in x.split(1)], len(x))


def _joined(pieces: list[Any], num_rows: int) -> Any:
    if isinstance(pieces[0], tuple):
        return tuple(_joined(list(parts), num_rows) for parts in zip(*pieces, strict=True))
    return pieces[0][:num_rows] if len(pieces) == 1 else torch.cat(pieces)[:num_rows]
