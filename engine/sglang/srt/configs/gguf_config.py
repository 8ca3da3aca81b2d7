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
_ROPE_SCALINGS = ("default", "linear", "llama3")


def read_gguf_config(path: Path) -> dict[str, Any]:
    """Arguments of `ModelConfig` but for the path."""
    file = GgufFile(path)
    if file.architecture not in _ARCHITECTURES:
        raise ValueError(
            f"{path} holds the architecture {file.architecture!r}; GGUF files of these can be "
            f"served: {', '.join(_ARCHITECTURES)}."
        )
    class_name, model_type = _ARCHITECTURES[file.architecture]
    heads = file.count("{arch}.attention.head_count")
    hidden_size = file.count("{arch}.embedding_length")
    num_tokens = len(file.list_of(str, "tokenizer.ggml.tokens"))
    padded = _vocabulary_rows(file, num_tokens)
    sizes = {
        "hidden_size": hidden_size,
        "intermediate_size": file.count("{arch}.feed_forward_length"),
        "num_hidden_layers": file.count("{arch}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": file.count("{arch}.attention.head_count_kv", heads),
        "head_dim": file.count("{arch}.attention.key_length", max(hidden_size // heads, 1)),
    }
    _check_sizes(file, sizes)
    return {
        "architectures": (class_name,),
        "model_type": model_type,
        "vocab_size": min(padded, num_tokens or padded),
        "padded_vocab_size": padded,
        **sizes,
        "rms_norm_eps": file.number("{arch}.attention.layer_norm_rms_epsilon"),
        "rope": _rope(file),
        "context_len": file.count("{arch}.context_length"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "attention_output_bias": "blk.0.attn_output.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
        "eos_token_ids": end_token_ids(file),
        "bos_token_id": file.token_id("bos_token_id"),
        "pad_token_id": file.token_id("padding_token_id"),
    }


def end_token_ids(file: GgufFile) -> tuple[int, ...]:
    """Every id that ends an answer: the ones named as such, and end-of-turn control tokens."""
    named = [file.token_id(key) for key in _END_TOKEN_KEYS]
    ids = [token_id for token_id in named if token_id is not None]
    types = file.list_of(int, "tokenizer.ggml.token_type")
    for token_id, text in enumerate(file.list_of(str, "tokenizer.ggml.tokens")):
        is_control = token_id < len(types) and types[token_id] == _CONTROL_TOKEN
        if is_control and text in _END_OF_TURN_TEXTS:
            ids.append(token_id)
    return tuple(dict.fromkeys(ids))


def _check_sizes(file: GgufFile, sizes: dict[str, int]) -> None:
    """Against the tensor table, before anybody allocates memory by these numbers."""
    q_rows = sizes["num_attention_heads"] * sizes["head_dim"]
    kv_rows = sizes["num_key_value_heads"] * sizes["head_dim"]
    wanted = {
        "blk.0.attn_q.weight": (q_rows, sizes["hidden_size"]),
        "blk.0.attn_k.weight": (kv_rows, sizes["hidden_size"]),
        "blk.0.ffn_gate.weight": (sizes["intermediate_size"], sizes["hidden_size"]),
    }
    for name, shape in wanted.items():
        tensor = file.tensors.get(name)
        if tensor is not None and tensor.shape != shape:
            raise ValueError(
                f"{file.path} is damaged: by its metadata tensor {name!r} has the shape "
                f"{list(shape)}, by its tensor table {list(tensor.shape)}; download it again."
            )
    num_layers = sizes["num_hidden_layers"]
    if num_layers > len(file.tensors):
        raise file.wrong(
            "{arch}.block_count", num_layers, f"at most the number of tensors, {len(file.tensors)}"
        )
    if sizes["head_dim"] % 2:
        raise file.wrong("{arch}.attention.key_length", sizes["head_dim"], "even")


def _vocabulary_rows(file: GgufFile, num_tokens: int) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is not None:
        return embedding.shape[0]
    return file.count("{arch}.vocab_size", num_tokens)


def _rope(file: GgufFile) -> RopeConfig:
    # llama3 scaling is not metadata here: it comes as the tensor rope_freqs.weight.
    scaling = file.text("{arch}.rope.scaling.type") or "none"
    factor = file.number("{arch}.rope.scaling.factor", 0.0)
    factor = factor or file.number("{arch}.rope.scale_linear", 0.0) or 1.0
    if scaling == "none":
        scaling = "default" if factor == 1.0 else "linear"
    if scaling not in _ROPE_SCALINGS:
        allowed = f"one of {', '.join(_ROPE_SCALINGS)}"
        raise file.wrong("{arch}.rope.scaling.type", scaling, allowed)
    theta = file.number("{arch}.rope.freq_base", RopeConfig.theta)
    if theta <= 0:
        raise file.wrong("{arch}.rope.freq_base", theta, "above 0")
    return RopeConfig(theta=theta, rope_type=scaling, factor=factor)
