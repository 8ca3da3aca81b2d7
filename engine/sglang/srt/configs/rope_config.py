"""How positions become angles: the rotary settings of a model."""

import math
from dataclasses import dataclass
from typing import Any

ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class RopeConfig:
    """Base frequency and scaling."""

    theta: float = 10000.0
    rope_type: str = "default"
    factor: float = 1.0
    original_max_position_embeddings: int = 8192  # of llama3 and yarn
    low_freq_factor: float = 1.0  # of llama3
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0  # of yarn: turns in the original context, where stretching begins
    beta_slow: float = 1.0  # and where it is complete
    truncate: bool = True  # of yarn: both limits are whole numbers
    attention_factor: float = 1.0  # of yarn: queries and keys grow by it

    def __post_init__(self) -> None:
        if self.rope_type not in ROPE_TYPES:
            raise ValueError(
                f"rotary scaling {self.rope_type!r} is not supported; "
                f"supported: {', '.join(ROPE_TYPES)}."
            )

    @classmethod
    def from_hf(cls, config: dict[str, Any]) -> "RopeConfig":
        """From `rope_parameters` (newer files) or `rope_theta` and `rope_scaling` (older ones)."""
        params = scaling_of(config)
        theta = params.get("rope_theta", config.get("rope_theta", cls.theta))
        rope_type = params.get("rope_type") or params.get("type") or "default"
        original = params.get("original_max_position_embeddings")
        if rope_type == "yarn" and original is None:
            original = config.get("max_position_embeddings")
        original = int(original or cls.original_max_position_embeddings)
        factor = params.get("factor")
        if rope_type == "yarn" and factor is None:
            factor = config.get("max_position_embeddings", original) / original
        factor = float(cls.factor if factor is None else factor)
        return cls(
            theta=float(theta),
            rope_type=rope_type,
            factor=factor,
            original_max_position_embeddings=original,
            low_freq_factor=float(params.get("low_freq_factor", cls.low_freq_factor)),
            high_freq_factor=float(params.get("high_freq_factor", cls.high_freq_factor)),
            beta_fast=float(params.get("beta_fast") or cls.beta_fast),
            beta_slow=float(params.get("beta_slow") or cls.beta_slow),
            truncate=bool(params.get("truncate", True)),
            attention_factor=_attention_factor(params, factor) if rope_type == "yarn" else 1.0,
        )


def scaling_of(config: dict[str, Any]) -> dict[str, Any]:
    """What a config.json says of rotary scaling, whatever the key's name."""
    return config.get("rope_parameters") or config.get("rope_scaling") or {}


def yarn_growth(factor: float, weight: float = 1.0) -> float:
    """How much larger scores have to be in a context that is stretched by `factor`."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _attention_factor(params: dict[str, Any], factor: float) -> float:
    if params.get("attention_factor") is not None:
        return float(params["attention_factor"])
    mscale, all_dim = params.get("mscale"), params.get("mscale_all_dim")
    if mscale and all_dim:
        return yarn_growth(factor, mscale) / yarn_growth(factor, all_dim)
    return yarn_growth(factor)
