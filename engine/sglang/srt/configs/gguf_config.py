"""The fields of a model's configuration that a GGUF file's metadata gives."""

from pathlib import Path
from typing import Any

from sglang.srt.configs.gguf_file import GgufFile
from sglang.srt.configs.rope_config import RopeConfig

# Architecture name in the file → (class of our model registry, model type).
_ARCHITECTURES = {"llama": ("LlamaForCausalLM", "llama")}
_END_TOKEN_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Ends of a turn by their text: files of older converters name only the general end token.
_END_OF_TURN_TEXTS = frozenset(
    ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|end_of_turn|>")
)
_CONTROL_TOKEN = 3


def read_gguf_config(path: Path) -> dict[str, Any]:
    """Arguments of `ModelConfig` but for the path."""
    file = GgufFile(path)
    if file.architecture not in _ARCHITECTURES:
        raise ValueError(
            f"{path} holds the architecture {file.architecture!r}; GGUF files of these can be "
            f"served: {', '.join(_ARCHITECTURES)}."
        )
    class_name, model_type = _ARCHITECTURES[file.architecture]
    heads = int(_required(file, "{arch}.attention.head_count"))
    hidden_size = int(_required(file, "{arch}.embedding_length"))
    tokens = file.get("tokenizer.ggml.tokens", [])
    padded = _vocabulary_rows(file, len(tokens))
    return {
        "architectures": (class_name,),
        "model_type": model_type,
        "vocab_size": min(padded, len(tokens) or padded),
        "padded_vocab_size": padded,
        "hidden_size": hidden_size,
        "intermediate_size": int(_required(file, "{arch}.feed_forward_length")),
        "num_hidden_layers": int(_required(file, "{arch}.block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(file.get("{arch}.attention.head_count_kv", heads)),
        "head_dim": int(file.get("{arch}.attention.key_length", hidden_size // heads)),
        "rms_norm_eps": float(_required(file, "{arch}.attention.layer_norm_rms_epsilon")),
        "rope": _rope(file),
        "context_len": int(_required(file, "{arch}.context_length")),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "attention_output_bias": "blk.0.attn_output.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
        "eos_token_ids": end_token_ids(file),
        "bos_token_id": file.get("tokenizer.ggml.bos_token_id"),
        "pad_token_id": file.get("tokenizer.ggml.padding_token_id"),
    }


def end_token_ids(file: GgufFile) -> tuple[int, ...]:
    """Every id that ends an answer: the ones named as such, and end-of-turn control tokens."""
    named = [file.get(f"tokenizer.ggml.{key}") for key in _END_TOKEN_KEYS]
    ids = [int(token_id) for token_id in named if token_id is not None]
    types = file.get("tokenizer.ggml.token_type", [])
    for token_id, text in enumerate(file.get("tokenizer.ggml.tokens", [])):
        is_control = token_id < len(types) and types[token_id] == _CONTROL_TOKEN
        if is_control and text in _END_OF_TURN_TEXTS:
            ids.append(token_id)
    return tuple(dict.fromkeys(ids))


def _required(file: GgufFile, key: str) -> Any:
    value = file.get(key)
    if value is None:
        raise ValueError(f"{file.path} lacks the metadata key {key.format(arch=file.architecture)}")
    return value


def _vocabulary_rows(file: GgufFile, num_tokens: int) -> int:
    embedding = file.tensors.get("token_embd.weight")
    return embedding.shape[0] if embedding else int(file.get("{arch}.vocab_size", num_tokens))


def _rope(file: GgufFile) -> RopeConfig:
    # llama3 scaling is not metadata here: it comes as the tensor rope_freqs.weight.
    scaling = str(file.get("{arch}.rope.scaling.type", "none"))
    factor = float(file.get("{arch}.rope.scaling.factor", 0.0))
    factor = factor or float(file.get("{arch}.rope.scale_linear", 0.0)) or 1.0
    if scaling == "none":
        scaling = "default" if factor == 1.0 else "linear"
    theta = float(file.get("{arch}.rope.freq_base", RopeConfig.theta))
    return RopeConfig(theta=theta, rope_type=scaling, factor=factor)
