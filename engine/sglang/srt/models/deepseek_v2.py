"""DeepSeek V2 and V3: multi-head latent attention, and experts in most layers."""

from collections.abc import Iterable

import torch
from torch import nn

from sglang.srt.configs.latent_config import LatentConfig
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.core.batch import ForwardBatch
from sglang.srt.layers.latent_projection import LatentProjection
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import Linear
from sglang.srt.layers.moe import BiasedSigmoidRouter
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.layers.rotary_embedding import Rotation
from sglang.srt.models.llama import LlamaDecoderLayer, LlamaForCausalLM, LlamaModel

_LATENT_EPS = 1e-6  # of the norms inside attention, whatever the other norms have


class DeepseekV2Attention(nn.Module):
    """Latent attention in the absorbed form, in prefill and decode alike."""

    def __init__(self, config: ModelConfig, layer_id: int) -> None:
        super().__init__()
        latent, heads = latent_of(config), config.num_attention_heads
        self.latent, self.num_heads = latent, heads
        if latent.q_lora_rank is None:
            self.q_proj = Linear(config.hidden_size, heads * latent.qk_head_dim)
        else:
            self.q_a_proj = Linear(config.hidden_size, latent.q_lora_rank, config.attention_bias)
            self.q_a_layernorm = RMSNorm(latent.q_lora_rank, _LATENT_EPS)
            self.q_b_proj = Linear(latent.q_lora_rank, heads * latent.qk_head_dim)
        self.kv_a_proj_with_mqa = Linear(
            config.hidden_size, latent.latent_dim, config.attention_bias
        )
        self.kv_a_layernorm = RMSNorm(latent.kv_lora_rank, _LATENT_EPS)
        self.kv_b_proj = LatentProjection(heads, latent)
        self.o_proj = Linear(
            heads * latent.v_head_dim, config.hidden_size, config.attention_output_bias
        )
        self.attn = RadixAttention(
            heads,
            latent.latent_dim,
            latent.score_growth * latent.qk_head_dim**-0.5,
            1,
            layer_id,
            v_head_dim=latent.kv_lora_rank,
        )

    def forward(
        self, hidden_states: torch.Tensor, rotation: Rotation, forward_batch: ForwardBatch
    ) -> torch.Tensor:
        # hidden_states: [num_tokens, hidden] -> like it
        sizes = self.latent
        q_nope, q_rope = (
            self._queries(hidden_states)
            .unflatten(-1, (self.num_heads, sizes.qk_head_dim))
            .split([sizes.qk_nope_head_dim, sizes.qk_rope_head_dim], dim=-1)
        )
        latent, k_rope = self.kv_a_proj_with_mqa(hidden_states).split(
            [sizes.kv_lora_rank, sizes.qk_rope_head_dim], dim=-1
        )
        rotated = rotation.apply(torch.cat((q_rope, k_rope.unsqueeze(1)), 1))
        q = torch.cat((self.kv_b_proj.absorb(q_nope), rotated[:, :-1]), -1).flatten(1)
        k = torch.cat((self.kv_a_layernorm(latent), rotated[:, -1]), -1)
        found = self.attn(q, k, k[:, : sizes.kv_lora_rank], forward_batch)
        found = found.unflatten(-1, (self.num_heads, sizes.kv_lora_rank))
        return self.o_proj(self.kv_b_proj.values(found).flatten(1))

    def _queries(self, hidden_states: torch.Tensor) -> torch.Tensor:
        # -> [num_tokens, num_heads * qk_head_dim]
        if self.latent.q_lora_rank is None:
            return self.q_proj(hidden_states)
        return self.q_b_proj(self.q_a_layernorm(self.q_a_proj(hidden_states)))


class DeepseekV2DecoderLayer(LlamaDecoderLayer):
    attention_class = DeepseekV2Attention


class DeepseekV2Model(LlamaModel):
    layer_class = DeepseekV2DecoderLayer


class DeepseekV2ForCausalLM(LlamaForCausalLM):
    """Heads that are rotated are stored pair by pair, and become halves when they are loaded."""

    model_class = DeepseekV2Model

    def prepared(
        self, weights: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterable[tuple[str, torch.Tensor]]:
        rope = latent_of(self.config).qk_rope_head_dim
        for name, tensor in super().prepared(weights):
            if _layer_of(name) >= self.config.num_hidden_layers:
                continue  # predicts further tokens; nothing here uses it
            if ".q_proj." in name or ".q_b_proj." in name:
                heads = tensor.unflatten(0, (self.config.num_attention_heads, -1))
                tensor = pairs_to_halves(heads, rope).flatten(0, 1)
            elif ".kv_a_proj_with_mqa." in name:
                tensor = pairs_to_halves(tensor.unsqueeze(0), rope).squeeze(0)
            yield name, tensor


class DeepseekV3DecoderLayer(DeepseekV2DecoderLayer):
    router_class = BiasedSigmoidRouter


class DeepseekV3Model(DeepseekV2Model):
    layer_class = DeepseekV3DecoderLayer


class DeepseekV3ForCausalLM(DeepseekV2ForCausalLM):
    """Differs in how experts are chosen."""

    model_class = DeepseekV3Model


def latent_of(config: ModelConfig) -> LatentConfig:
    if config.latent is None:
        raise ValueError(
            f"{config.model_path}: config.json of {config.architectures[0]} lacks kv_lora_rank; "
            "this architecture keeps a latent of that size per token"
        )
    return config.latent


def pairs_to_halves(rows: torch.Tensor, rope: int) -> torch.Tensor:
    """Of each head's last `rope` rows: those at even places first, then those at odd ones.

    Both numbers of a pair are turned by one angle. Scores are the same in either order, as queries
    and keys change places alike.
    """
    # rows: [num_heads, rows of a head, ...] -> like it
    kept, rotated = rows[:, :-rope], rows[:, -rope:]
    return torch.cat((kept, rotated[:, 0::2], rotated[:, 1::2]), 1)


def _layer_of(name: str) -> int:
    parts = name.split(".")
    return int(parts[2]) if name.startswith("model.layers.") else -1


EntryClass = [DeepseekV2ForCausalLM, DeepseekV3ForCausalLM]
