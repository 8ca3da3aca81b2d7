"""Embeddings as the caller wants them."""

import math


def shortened(vector: list[float], dimensions: int | None) -> list[float]:
    """The first `dimensions` numbers, of length 1 again; None: all of them."""
    if dimensions is None:
        return vector
    if not 1 <= dimensions <= len(vector):
        raise ValueError(f"dimensions must be in 1 … {len(vector)}, got {dimensions}")
    head = vector[:dimensions]
    length = math.hypot(*head)
    return [value / length for value in head] if length else head
