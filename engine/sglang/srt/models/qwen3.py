"""Qwen3: Llama whose queries and keys are normalized head by head; with or without experts."""

import torch

from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.models.llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaForCausalLM,
    LlamaModel,
)


class Qwen3Attention(LlamaAttention):
    def __init__(self, config: ModelConfig, layer_id: int) -> None:
        super().__init__(config, layer_id)
        self.num_heads = config.num_attention_heads
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def normed(self, heads: torch.Tensor) -> torch.Tensor:
        q, k = heads[:, : self.num_heads], heads[:, self.num_heads :]
        return torch.cat((self.q_norm(q), self.k_norm(k)), 1)


class Qwen3DecoderLayer(LlamaDecoderLayer):
    attention_class = Qwen3Attention


class Qwen3Model(LlamaModel):
    layer_class = Qwen3DecoderLayer


class Qwen3ForCausalLM(LlamaForCausalLM):
    model_class = Qwen3Model


class Qwen3MoeForCausalLM(Qwen3ForCausalLM):
    """The experts come from the configuration."""


EntryClass = [Qwen3ForCausalLM, Qwen3MoeForCausalLM]
