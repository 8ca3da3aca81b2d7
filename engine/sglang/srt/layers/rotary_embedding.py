"""Rotary position embedding: angles by position, and their application to q and k."""

import math
from dataclasses import dataclass

import torch
from torch import nn

from sglang.kernels.rotary import Rotate, rotate_for
from sglang.srt.configs.rope_config import RopeConfig


@dataclass(frozen=True)
class Rotation:
    """What turns the heads of a pass, shared by all its layers."""

    cos: torch.Tensor  # [num_tokens, 1, head_dim]
    sin: torch.Tensor  # like cos, with the sign of the half it belongs to
    rotate: Rotate

    def apply(self, heads: torch.Tensor) -> torch.Tensor:
        # heads: [num_tokens, num_heads, head_dim] -> like heads
        return self.rotate(heads, self.cos, self.sin)


class RotaryEmbedding(nn.Module):
    """Cosines and sines of all positions of the context, computed once in float32.

    The two halves of a head are the real and imaginary parts (the layout of HF checkpoints).
    """

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, head_dim: int, rope: RopeConfig, context_len: int) -> None:
        super().__init__()
        self.context_len = context_len
        self._growth = rope.attention_factor
        self._fill(inverse_frequencies(head_dim, rope))
        self._rotate = rotate_for(self.cos.device)

    def set_frequency_factors(self, factors: torch.Tensor) -> None:
        """Divides each frequency, as a file's own table of factors demands."""
        # factors: [head_dim / 2]
        if factors.shape != self._inverse_frequencies.shape:
            raise ValueError(
                f"expected {list(self._inverse_frequencies.shape)} frequency factors, "
                f"found {list(factors.shape)}"
            )
        self._fill(self._inverse_frequencies / factors.float().cpu())

    def lookup(self, positions: torch.Tensor, dtype: torch.dtype) -> Rotation:
        # positions: [num_tokens]
        cos = self.cos.index_select(0, positions).to(dtype).unsqueeze(1)
        sin = self.sin.index_select(0, positions).to(dtype).unsqueeze(1)
        return Rotation(cos, sin, self._rotate)

    def _fill(self, inverse_frequencies: torch.Tensor) -> None:
        self._inverse_frequencies = inverse_frequencies
        angles = torch.outer(
            torch.arange(self.context_len, dtype=torch.float32), inverse_frequencies
        )
        cos, sin = angles.cos() * self._growth, angles.sin() * self._growth
        # x * cos + swap(x) * sin rotates, where swap exchanges the halves of a head.
        self.register_buffer("cos", torch.cat((cos, cos), -1), persistent=False)
        self.register_buffer("sin", torch.cat((-sin, sin), -1), persistent=False)


def inverse_frequencies(head_dim: int, rope: RopeConfig) -> torch.Tensor:
    """One frequency per pair of a head's numbers, scaled as the model says."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.rope_type == "linear":
        return frequencies / rope.factor
    if rope.rope_type == "llama3":
        return _llama3_frequencies(frequencies, rope)
    if rope.rope_type == "yarn":
        return _yarn_frequencies(frequencies, rope)
    return frequencies


def _llama3_frequencies(frequencies: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    # Long waves are stretched by the factor, short ones kept, those between blended.
    wavelengths = 2 * math.pi / frequencies
    longest_kept = rope.original_max_position_embeddings / rope.high_freq_factor
    shortest_stretched = rope.original_max_position_embeddings / rope.low_freq_factor
    share = (rope.original_max_position_embeddings / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - share) * frequencies / rope.factor + share * frequencies
    scaled = torch.where(wavelengths > shortest_stretched, frequencies / rope.factor, blended)
    return torch.where(wavelengths < longest_kept, frequencies, scaled)


def _yarn_frequencies(frequencies: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    # What turns often in the original context is kept, what turns little is stretched, with a
    # ramp between.
    num = len(frequencies)

    def index_at(turns: float) -> float:
        wavelengths = rope.original_max_position_embeddings / (turns * 2 * math.pi)
        return num * math.log(wavelengths) / math.log(rope.theta)

    first, last = index_at(rope.beta_fast), index_at(rope.beta_slow)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * num - 1)
    ramp = (torch.arange(num, dtype=torch.float32) - first) / max(last - first, 0.001)
    stretched = ramp.clamp(0, 1)
    return frequencies / rope.factor * stretched + frequencies * (1 - stretched)
