"""How positions become angles: the rotary settings of a model."""

from dataclasses import dataclass
from typing import Any

ROPE_TYPES = ("default", "linear", "llama3")


@dataclass(frozen=True)
class RopeConfig:
    """Base frequency and scaling. The last three fields belong to `llama3`."""

    theta: float = 10000.0
    rope_type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    def __post_init__(self) -> None:
        if self.rope_type not in ROPE_TYPES:
            raise ValueError(
                f"rotary scaling {self.rope_type!r} is not supported; "
                f"supported: {', '.join(ROPE_TYPES)}."
            )

    @classmethod
    def from_hf(cls, config: dict[str, Any]) -> "RopeConfig":
        """From `rope_parameters` (newer files) or `rope_theta` and `rope_scaling` (older ones)."""
        params = config.get("rope_parameters") or config.get("rope_scaling") or {}
        theta = params.get("rope_theta", config.get("rope_theta", cls.theta))
        original = params.get("original_max_position_embeddings")
        return cls(
            theta=float(theta),
            rope_type=params.get("rope_type") or params.get("type") or "default",
            factor=float(params.get("factor", cls.factor)),
            low_freq_factor=float(params.get("low_freq_factor", cls.low_freq_factor)),
            high_freq_factor=float(params.get("high_freq_factor", cls.high_freq_factor)),
            original_max_position_embeddings=int(original or cls.original_max_position_embeddings),
        )
