"""Llama and the architectures that are Llama by another name."""

from collections.abc import Iterable

import torch
from torch import nn

from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.core.batch import ForwardBatch
from sglang.srt.layers.gated_mlp import GatedMLP
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import Linear, QKVLinear
from sglang.srt.layers.logits_processor import LogitsOutput, LogitsProcessor
from sglang.srt.layers.moe import ExpertRouter, MixtureOfExperts
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.layers.rotary_embedding import RotaryEmbedding, Rotation
from sglang.srt.layers.vocab_embedding import LMHead, VocabEmbedding
from sglang.srt.models.weights import PackedWeight, expected_weights, load_parameters

_PACKED = (
    PackedWeight("qkv_proj", "q_proj", "q"),
    PackedWeight("qkv_proj", "k_proj", "k"),
    PackedWeight("qkv_proj", "v_proj", "v"),
    PackedWeight("gate_up_proj", "gate_proj", "gate"),
    PackedWeight("gate_up_proj", "up_proj", "up"),
)
# One divisor per rotary frequency; GGUF files carry llama3 scaling this way.
ROPE_FACTORS = "model.rotary_emb.factors"


class LlamaAttention(nn.Module):
    """Projections, rotary positions and attention of one layer."""

    def __init__(self, config: ModelConfig, layer_id: int) -> None:
        super().__init__()
        heads, kv_heads, head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        self.num_rotated = heads + kv_heads
        self.head_dim = head_dim
        self.sizes = [heads * head_dim, kv_heads * head_dim]
        self.qkv_proj = QKVLinear(
            config.hidden_size, head_dim, heads, kv_heads, config.attention_bias
        )
        self.o_proj = Linear(heads * head_dim, config.hidden_size, config.attention_output_bias)
        self.attn = RadixAttention(
            heads,
            head_dim,
            (config.query_scale_dim or head_dim) ** -0.5,
            kv_heads,
            layer_id,
            logit_cap=config.attn_logit_cap,
            sliding_window_size=config.window_of(layer_id),
        )

    def forward(
        self,
        hidden_states: torch.Tensor,
        rotation: Rotation,
        forward_batch: ForwardBatch,
    ) -> torch.Tensor:
        # hidden_states: [num_tokens, hidden]
        qk, v = self.qkv_proj(hidden_states).split(
            [self.num_rotated * self.head_dim, self.sizes[1]], dim=-1
        )
        heads = self.normed(qk.reshape(-1, self.num_rotated, self.head_dim))
        q, k = rotation.apply(heads).flatten(1).split(self.sizes, dim=-1)
        return self.o_proj(self.attn(q, k, v, forward_batch))

    def normed(self, heads: torch.Tensor) -> torch.Tensor:
        """Queries and keys as they are rotated; here they stay."""
        # heads: [num_tokens, num_heads + num_kv_heads, head_dim] -> like it
        return heads


class LlamaDecoderLayer(nn.Module):
    """With experts in place of the MLP where the configuration has them."""

    attention_class: type[nn.Module] = LlamaAttention
    router_class: type[ExpertRouter] = ExpertRouter

    def __init__(self, config: ModelConfig, layer_id: int) -> None:
        super().__init__()
        self.self_attn = self.attention_class(config, layer_id)
        size, act, experts = config.hidden_size, config.hidden_act, config.experts
        if experts is None or layer_id in experts.dense_layers:
            self.mlp: nn.Module = GatedMLP(size, config.intermediate_size, act, config.mlp_bias)
        else:
            self.mlp = MixtureOfExperts(size, experts, act, self.router_class(size, experts))
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self,
        normed: torch.Tensor,
        residual: torch.Tensor,
        rotation: Rotation,
        forward_batch: ForwardBatch,
    ) -> torch.Tensor:
        """What is to be added to `residual` next. `normed` is the output of `input_layernorm`."""
        # normed, residual: [num_tokens, hidden] -> like them
        update = self.self_attn(normed, rotation, forward_batch)
        return self.mlp(self.post_attention_layernorm.after_adding(residual, update))


class LlamaModel(nn.Module):
    """Embedding, layers and the last normalization. Its kin have other layers or norms."""

    layer_class: type[nn.Module] = LlamaDecoderLayer
    norm_class: type[RMSNorm] = RMSNorm

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = VocabEmbedding(config.padded_vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            self.layer_class(config, layer_id) for layer_id in range(config.num_hidden_layers)
        )
        self.norm = self.norm_class(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = RotaryEmbedding(config.rotary_dim, config.rope, config.context_len)
        # The norm after each layer; it also adds what the layer found out.
        self._next_norms = [*(layer.input_layernorm for layer in self.layers), self.norm][1:]

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: ForwardBatch
    ) -> torch.Tensor:
        # input_ids, positions: [num_tokens] -> [num_tokens, hidden]
        residual = self.embed(input_ids)
        rotation = self.rotary_emb.lookup(positions, residual.dtype)
        normed = self.layers[0].input_layernorm(residual)
        for layer, next_norm in zip(self.layers, self._next_norms, strict=True):
            update = layer(normed, residual, rotation, forward_batch)
            normed = next_norm.after_adding(residual, update)
        return normed

    def embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        # input_ids: [num_tokens] -> [num_tokens, hidden]
        return self.embed_tokens(input_ids)


class LlamaForCausalLM(nn.Module):
    """The architecture as the runner sees it."""

    model_class: type[LlamaModel] = LlamaModel

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = self.model_class(config)
        self.lm_head = LMHead(
            config.hidden_size,
            config.padded_vocab_size,
            config.vocab_size,
            config.final_logit_cap,
        )
        if config.tie_word_embeddings:
            self.lm_head.tie(self.model.embed_tokens)
        self.logits_processor = LogitsProcessor()

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: ForwardBatch
    ) -> LogitsOutput:
        # input_ids, positions: [num_tokens]
        hidden_states = self.model(input_ids, positions, forward_batch)
        return self.logits_processor(hidden_states, self.lm_head, forward_batch)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        # hidden_states: [rows, hidden], normalized -> [rows, vocab]
        return self.lm_head(hidden_states)

    def expected_weights(self) -> set[str]:
        """Names of the tensors that a checkpoint must have."""
        return set(expected_weights(self, _PACKED))

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Fills the parameters; see `load_parameters` for what may be missing or unknown."""
        skipped = {"lm_head.weight"} if self.config.tie_word_embeddings else set()
        # Old checkpoints store what the rotary settings give anyway.
        skipped.update(
            f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"
            for layer in range(self.config.num_hidden_layers)
        )
        load_parameters(self, self.prepared(weights), _PACKED, frozenset(skipped))

    def prepared(
        self, weights: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterable[tuple[str, torch.Tensor]]:
        """The checkpoint's tensors as the parameters want them."""
        for name, tensor in weights:
            if name == ROPE_FACTORS:
                self.model.rotary_emb.set_frequency_factors(tensor)
            else:
                yield name, tensor


class MistralForCausalLM(LlamaForCausalLM):
    """The same computation; every layer may have a sliding window."""


EntryClass = [LlamaForCausalLM, MistralForCausalLM]
