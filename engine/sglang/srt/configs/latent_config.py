"""Sizes of multi-head latent attention."""

from dataclasses import dataclass
from typing import Any

from sglang.srt.configs.rope_config import scaling_of, yarn_growth


@dataclass(frozen=True)
class LatentConfig:
    """Keys and values of all heads are made of one latent per token."""

    q_lora_rank: int | None  # None: queries are made of the hidden state itself
    kv_lora_rank: int
    qk_nope_head_dim: int  # of a head's query and key, without position
    qk_rope_head_dim: int  # of the rest, which is rotated; all heads share the key's
    v_head_dim: int
    score_growth: float = 1.0  # of scores in a context that yarn stretched

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def latent_dim(self) -> int:
        """Numbers that are kept of a token: the latent and the rotated part of the key."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @classmethod
    def from_hf(cls, config: dict[str, Any]) -> "LatentConfig | None":
        """None for a model without latent attention."""
        if config.get("kv_lora_rank") is None:
            return None
        rank, scaling = config.get("q_lora_rank"), scaling_of(config)
        growth = 1.0
        if (scaling.get("rope_type") or scaling.get("type") or "default") != "default":
            all_dim = scaling.get("mscale_all_dim") or 0.0
            growth = yarn_growth(float(scaling["factor"]), all_dim) ** 2 if all_dim else 1.0
        return cls(
            q_lora_rank=None if rank is None else int(rank),
            kv_lora_rank=int(config["kv_lora_rank"]),
            qk_nope_head_dim=int(config["qk_nope_head_dim"]),
            qk_rope_head_dim=int(config["qk_rope_head_dim"]),
            v_head_dim=int(config["v_head_dim"]),
            score_growth=growth,
        )
