"""Writes a small Llama model as a GGUF file, with the `gguf` package's own writer."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, LAYERS = 64, 96, 4, 2, 2
# Byte-level pieces of the printable characters, then what the tests talk about.
PIECES = [chr(code) for code in range(33, 127)] + ["Ġ", "Ċ", "th", "Ġth"]
CONTROL = ["<|start|>", "<|im_end|>", "<|stop|>"]
USER_DEFINED = ["<tool>"]
TOKENS = [*PIECES, *CONTROL, *USER_DEFINED]
END_OF_TURN, STOP = TOKENS.index("<|im_end|>"), TOKENS.index("<|stop|>")


def tensor_shapes() -> dict[str, tuple[int, ...]]:
    kv = HIDDEN // HEADS * KV_HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (len(TOKENS) + 6, HIDDEN),  # six padding rows
        "output_norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (HIDDEN,),
            f"blk.{layer}.attn_q.weight": (HIDDEN, HIDDEN),
            f"blk.{layer}.attn_k.weight": (kv, HIDDEN),
            f"blk.{layer}.attn_v.weight": (kv, HIDDEN),
            f"blk.{layer}.attn_output.weight": (HIDDEN, HIDDEN),
            f"blk.{layer}.ffn_norm.weight": (HIDDEN,),
            f"blk.{layer}.ffn_gate.weight": (INTERMEDIATE, HIDDEN),
            f"blk.{layer}.ffn_up.weight": (INTERMEDIATE, HIDDEN),
            f"blk.{layer}.ffn_down.weight": (HIDDEN, INTERMEDIATE),
        }
    return shapes


@dataclass
class TinyGguf:
    """What goes into the file; change it before `write`."""

    kind: GGMLQuantizationType = GGMLQuantizationType.Q4_1
    without: tuple[str, ...] = ()
    extra: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    eos_token_id: int = STOP
    context_len: int = 128
    tensors: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        generator = np.random.default_rng(5)
        for name, shape in tensor_shapes().items():
            values = generator.standard_normal(shape, dtype=np.float32)
            self.tensors[name] = values * 0.2 + (1.0 if name.endswith("norm.weight") else 0.0)

    def write(self, path: Path) -> Path:
        writer = GGUFWriter(path, "llama")
        writer.add_block_count(LAYERS)
        writer.add_context_length(self.context_len)
        writer.add_embedding_length(HIDDEN)
        writer.add_feed_forward_length(INTERMEDIATE)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(KV_HEADS)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_freq_base(10000.0)
        self._add_tokenizer(writer)
        for name, values in {**self.tensors, **self.extra}.items():
            if name in self.without:
                continue
            if values.ndim == 1:
                writer.add_tensor(name, values)
            else:
                writer.add_tensor(name, quantize(values, self.kind), raw_dtype=self.kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _add_tokenizer(self, writer: GGUFWriter) -> None:
        kinds = [1] * len(PIECES) + [3] * len(CONTROL) + [4] * len(USER_DEFINED)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("smollm")
        writer.add_token_list(TOKENS)
        writer.add_token_types(kinds)
        writer.add_token_merges(["t h", "Ġ th"])
        writer.add_bos_token_id(TOKENS.index("<|start|>"))
        writer.add_eos_token_id(self.eos_token_id)
        writer.add_chat_template("{{ messages[0]['content'] }}<|im_end|>")
