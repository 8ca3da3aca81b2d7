"""Gemma 2: windows in every other layer, norms on both sides of each part, capped scores."""

import torch

from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.core.batch import ForwardBatch
from sglang.srt.layers.layernorm import CenteredRMSNorm
from sglang.srt.layers.rotary_embedding import Rotation
from sglang.srt.models.llama import LlamaDecoderLayer, LlamaForCausalLM, LlamaModel


class Gemma2DecoderLayer(LlamaDecoderLayer):
    """What a part says is normalized before it is added."""

    def __init__(self, config: ModelConfig, layer_id: int) -> None:
        super().__init__(config, layer_id)
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = CenteredRMSNorm(size, eps)
        self.post_attention_layernorm = CenteredRMSNorm(size, eps)
        self.pre_feedforward_layernorm = CenteredRMSNorm(size, eps)
        self.post_feedforward_layernorm = CenteredRMSNorm(size, eps)

    def forward(
        self,
        normed: torch.Tensor,
        residual: torch.Tensor,
        rotation: Rotation,
        forward_batch: ForwardBatch,
    ) -> torch.Tensor:
        update = self.post_attention_layernorm(self.self_attn(normed, rotation, forward_batch))
        normed = self.pre_feedforward_layernorm.after_adding(residual, update)
        return self.post_feedforward_layernorm(self.mlp(normed))


class Gemma2Model(LlamaModel):
    layer_class = Gemma2DecoderLayer
    norm_class = CenteredRMSNorm

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self._scale = config.hidden_size**0.5

    def embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        vectors = super().embed(input_ids)
        # The scale is rounded to the vectors' type, as the model was trained.
        return vectors * torch.tensor(self._scale, dtype=vectors.dtype, device=vectors.device)


class Gemma2ForCausalLM(LlamaForCausalLM):
    """Windows and caps come from the configuration."""

    model_class = Gemma2Model


EntryClass = Gemma2ForCausalLM
