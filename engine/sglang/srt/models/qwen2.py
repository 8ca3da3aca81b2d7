"""Qwen2: Llama whose query, key and value projections have biases."""

from sglang.srt.models.llama import LlamaForCausalLM


class Qwen2ForCausalLM(LlamaForCausalLM):
    """The biases come from the configuration, see `ModelConfig.attention_bias`."""


EntryClass = Qwen2ForCausalLM
