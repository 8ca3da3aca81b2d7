"""Tensors of a GGUF file as the model wants them: HF names, HF order of rows, plain numbers."""

import logging
import re
from collections.abc import Iterable, Iterator

import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from sglang.srt.configs.gguf_file import GgufFile, GgufTensor
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.models.llama import ROPE_FACTORS

logger = logging.getLogger(__name__)

_GLOBAL_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_PATTERN = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_ROPE_FREQS = "rope_freqs.weight"


def hf_name(gguf_name: str) -> str | None:
    """The HF name of a tensor; None for one that the architecture does not know."""
    if gguf_name == _ROPE_FREQS:
        return ROPE_FACTORS
    if match := _LAYER_PATTERN.fullmatch(gguf_name):
        layer, part, kind = match.groups()
        return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{kind}" if part in _LAYER_NAMES else None
    part, _, kind = gguf_name.rpartition(".")
    return f"{_GLOBAL_NAMES[part]}.{kind}" if part in _GLOBAL_NAMES else None


def check_complete(file: GgufFile, needed: Iterable[str]) -> None:
    """Raises ValueError that names, as the file would, the needed tensors it lacks."""
    present = {hf_name(name) for name in file.tensors}
    missing = sorted(set(needed) - present)
    if missing:
        shown = ", ".join(f"{_gguf_name(name)!r} ({name})" for name in missing[:8])
        more = " …" if len(missing) > 8 else ""
        raise ValueError(
            f"{file.path} lacks {len(missing)} tensors that the model needs: {shown}{more}. "
            "The file is incomplete or belongs to another architecture."
        )


def iterate_gguf(file: GgufFile, config: ModelConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """HF name and float32 tensor, dequantized one at a time. Unknown tensors: a warning."""
    for tensor in file.tensors.values():
        name = hf_name(tensor.name)
        if name is None:
            logger.warning("%s: tensor %r is unknown; skipped.", file.path.name, tensor.name)
            continue
        if name == ROPE_FACTORS:
            logger.info("%s: rotary frequencies are scaled by %r.", file.path.name, tensor.name)
        values = read_tensor(file, tensor)
        heads = _heads_of(name, config)
        if heads:
            if values.shape[0] % (2 * heads):
                raise ValueError(
                    f"{file.path} is damaged: {values.shape[0]} rows of tensor {tensor.name!r} "
                    f"cannot be shared out to {heads} heads; download it again."
                )
            values = _unpermute(values, heads)
        yield name, values


def read_tensor(file: GgufFile, tensor: GgufTensor) -> torch.Tensor:
    """Plain float32 numbers, in the file's own order of rows."""
    try:
        kind = GGMLQuantizationType(tensor.type_id)
    except ValueError as error:
        raise ValueError(
            f"{file.path}: tensor {tensor.name!r} has the unknown type {tensor.type_id}."
        ) from error
    block_len, block_bytes = GGML_QUANT_SIZES[kind]
    row_len = tensor.shape[-1]
    if row_len % block_len:
        raise ValueError(
            f"{file.path} is damaged: rows of tensor {tensor.name!r} have {row_len} numbers, but "
            f"{kind.name} stores blocks of {block_len}; download it again."
        )
    row_bytes = row_len // block_len * block_bytes
    try:
        values = dequantize(file.tensor_bytes(tensor.name, row_bytes), kind)
    except NotImplementedError as error:
        raise ValueError(
            f"{file.path}: tensor {tensor.name!r} is quantized as {kind.name}, which cannot be "
            "read; use a file with Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, a K-quant, F16 or BF16."
        ) from error
    # Float types come as a view of the read-only file.
    return torch.from_numpy(values if values.flags.writeable else values.copy())


def _heads_of(name: str, config: ModelConfig) -> int:
    """Heads whose rows the converter reordered; 0 for other tensors."""
    if ".q_proj." in name:
        return config.num_attention_heads
    return config.num_key_value_heads if ".k_proj." in name else 0


def _unpermute(values: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Undoes the converter's order of q and k rows: pairs of a rotation side by side."""
    # values: [num_heads * head_dim, ...]
    pairs = values.view(num_heads, values.shape[0] // num_heads // 2, 2, *values.shape[1:])
    return pairs.transpose(1, 2).reshape(values.shape)


def _gguf_name(name: str) -> str:
    base, _, kind = name.rpartition(".")
    for gguf_part, hf_part in _GLOBAL_NAMES.items():
        if base == hf_part:
            return f"{gguf_part}.{kind}"
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", base)
    for gguf_part, hf_part in _LAYER_NAMES.items():
        if match and match.group(2) == hf_part:
            return f"blk.{match.group(1)}.{gguf_part}.{kind}"
    return name
