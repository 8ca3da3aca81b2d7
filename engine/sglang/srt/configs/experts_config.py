"""Sizes of a mixture of experts, and how tokens choose among them."""

from dataclasses import dataclass
from typing import Any

_NUM_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts")


@dataclass(frozen=True)
class ExpertsConfig:
    """Of all layers but `dense_layers`, which have one plain MLP each."""

    num_experts: int
    num_per_token: int
    intermediate_size: int  # of one expert
    shared_intermediate_size: int = 0  # of what every token passes through; 0: nothing
    dense_layers: frozenset[int] = frozenset()
    num_groups: int = 1  # experts stand in groups, and a token chooses groups first
    num_groups_per_token: int = 1
    normalizes_weights: bool = False  # the weights of a token's experts sum up to the scale
    weight_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.num_experts % self.num_groups or self.num_groups_per_token > self.num_groups:
            raise ValueError(
                f"{self.num_experts} experts in {self.num_groups} groups, of which a token takes "
                f"{self.num_groups_per_token}: groups must be of equal size and as many as taken"
            )
        most = self.num_experts // self.num_groups * self.num_groups_per_token
        if not 1 <= self.num_per_token <= most:
            raise ValueError(
                f"a token cannot take {self.num_per_token} experts: it may take 1 to {most}"
            )

    @classmethod
    def from_hf(cls, config: dict[str, Any]) -> "ExpertsConfig | None":
        """None for a model without experts."""
        num_experts = next((config[key] for key in _NUM_EXPERTS if config.get(key)), None)
        if num_experts is None or config.get("num_experts_per_tok") is None:
            return None
        size = int(config.get("moe_intermediate_size") or config["intermediate_size"])
        in_groups = config.get("topk_method") != "greedy"
        groups = config.get("n_group") if in_groups else None
        return cls(
            num_experts=int(num_experts),
            num_per_token=int(config["num_experts_per_tok"]),
            intermediate_size=size,
            shared_intermediate_size=size * int(config.get("n_shared_experts") or 0),
            dense_layers=_dense_layers(config),
            num_groups=int(groups or 1),
            num_groups_per_token=int(config.get("topk_group") or 1) if groups else 1,
            normalizes_weights=bool(
                config.get("norm_topk_prob", config.get("model_type") == "mixtral")
            ),
            weight_scale=float(config.get("routed_scaling_factor") or 1.0),
        )


def _dense_layers(config: dict[str, Any]) -> frozenset[int]:
    first = int(config.get("first_k_dense_replace") or 0)
    every = int(config.get("moe_layer_freq") or 1)
    step = int(config.get("decoder_sparse_step") or 1)
    named = config.get("mlp_only_layers") or []
    return frozenset(
        layer
        for layer in range(int(config["num_hidden_layers"]))
        if layer < first or layer % every or (layer + 1) % step or layer in named
    )
