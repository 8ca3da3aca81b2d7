"""Mixtures of experts: which experts a token takes, and the sum of what they say."""

import torch
import torch.nn.functional as F
from torch import nn

from sglang.srt.configs.experts_config import ExpertsConfig
from sglang.srt.layers.gated_mlp import GatedMLP
from sglang.srt.layers.linear import new_parameter


class ExpertRouter(nn.Module):
    """Scores are shares of a softmax; a group is as good as its best expert."""

    def __init__(self, hidden_size: int, config: ExpertsConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = new_parameter(torch.empty(config.num_experts, hidden_size))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights (float32) and ids of each token's experts."""
        # x: [num_tokens, hidden] -> two of [num_tokens, num_per_token]
        scores = torch.softmax(self._logits(x), -1)
        chosen = scores
        if self.config.num_groups > 1:
            chosen = scores.masked_fill(
                ~self._in_best_groups(_grouped(scores, self.config).amax(-1)), 0
            )
        return self._weighed(scores, chosen.topk(self.config.num_per_token, -1).indices)

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        # -> [num_tokens, num_experts] float32
        return F.linear(x.float(), self.weight.float())

    def _in_best_groups(self, group_scores: torch.Tensor) -> torch.Tensor:
        # group_scores: [num_tokens, num_groups] -> [num_tokens, num_experts] bool
        best = group_scores.topk(self.config.num_groups_per_token, -1).indices
        is_best = torch.zeros_like(group_scores, dtype=torch.bool).scatter_(1, best, True)
        return is_best.repeat_interleave(self.config.num_experts // self.config.num_groups, -1)

    def _weighed(
        self, scores: torch.Tensor, ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        weights = scores.gather(1, ids)
        if self.config.normalizes_weights:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return weights * self.config.weight_scale, ids


class BiasedSigmoidRouter(ExpertRouter):
    """Scores are sigmoids. A bias per expert, which only the choice sees, keeps the load even; a
    group is as good as its two best experts together.
    """

    def __init__(self, hidden_size: int, config: ExpertsConfig) -> None:
        super().__init__(hidden_size, config)
        bias = torch.zeros(config.num_experts, dtype=torch.float32)
        self.e_score_correction_bias = new_parameter(bias)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = torch.sigmoid(self._logits(x))
        chosen = scores + self.e_score_correction_bias
        if self.config.num_groups > 1:
            group_scores = _grouped(chosen, self.config).topk(2, -1).values.sum(-1)
            chosen = chosen.masked_fill(~self._in_best_groups(group_scores), -torch.inf)
        return self._weighed(scores, chosen.topk(self.config.num_per_token, -1).indices)


class MixtureOfExperts(nn.Module):
    """The weighted sum of each token's experts, and of what all tokens share."""

    def __init__(
        self, hidden_size: int, config: ExpertsConfig, hidden_act: str, router: ExpertRouter
    ) -> None:
        super().__init__()
        self.gate = router
        self.experts = nn.ModuleList(
            GatedMLP(hidden_size, config.intermediate_size, hidden_act)
            for _ in range(config.num_experts)
        )
        self.shared_experts: GatedMLP | None = None
        if config.shared_intermediate_size:
            self.shared_experts = GatedMLP(hidden_size, config.shared_intermediate_size, hidden_act)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # x: [num_tokens, hidden] -> [num_tokens, hidden]
        weights, ids = self.gate(x)
        out = self._of_experts(x, weights, ids)
        return out if self.shared_experts is None else out + self.shared_experts(x)

    def _of_experts(
        self, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor
    ) -> torch.Tensor:
        """One product per expert that any token takes. A token's experts are added in the order of
        their numbers, so that its sum is the same in any batch.
        """
        order = ids.flatten().argsort(stable=True)
        tokens, weights = order // ids.shape[1], weights.flatten()[order].unsqueeze(1)
        counts = torch.bincount(ids.flatten(), minlength=len(self.experts)).tolist()
        out = torch.zeros_like(x)
        start = 0
        for expert, count in zip(self.experts, counts, strict=True):
            if count == 0:
                continue
            own = slice(start, start + count)
            said = expert(x.index_select(0, tokens[own])) * weights[own]
            out.index_add_(0, tokens[own], said.to(x.dtype))
            start += count
        return out


def _grouped(scores: torch.Tensor, config: ExpertsConfig) -> torch.Tensor:
    # scores: [num_tokens, num_experts] -> [num_tokens, num_groups, experts of a group]
    return scores.unflatten(-1, (config.num_groups, -1))
