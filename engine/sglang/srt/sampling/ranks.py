"""The largest numbers of a row, in an order that equal numbers do not leave open."""

import torch

_LOW_BITS = 32


def stable_topk(values: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Like `topk`; of equal numbers the lower index comes first, and is in when not all are.

    `topk` itself decides by how many are asked for, and so by what others in the batch want.
    """
    # values: [num_rows, n] float32 -> two of [num_rows, count]
    bits = (values + 0.0).view(torch.int32)  # the sum makes -0.0 equal to 0.0
    # Floats order like their bits, and negative ones the other way round.
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long() << _LOW_BITS
    reverse = torch.arange(values.shape[-1], 0, -1, device=values.device)
    indices = (ordered + reverse).topk(count, dim=-1).indices
    return values.gather(-1, indices), indices
