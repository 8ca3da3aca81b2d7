"""A GGUF file becomes the model it was made of."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize, quantize
from transformers import LlamaConfig, LlamaForCausalLM

from sglang.srt.configs.gguf_file import GgufFile, GgufTensor
from sglang.srt.model_loader.gguf_weights import read_tensor
from tests.unit.srt.model_loader.tiny_gguf import HEADS, KV_HEADS, TOKENS, TinyGguf
from tests.unit.srt.models.driver import Driver, make_req

PROMPT = [5, 80, 33, 7, 7, 12]
KINDS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "F32", "BF16")


@pytest.mark.parametrize("name", KINDS)
def test_tensors_are_what_the_package_dequantizes(tmp_path: Path, name: str) -> None:
    path = TinyGguf(kind=GGMLQuantizationType[name]).write(tmp_path / "m.gguf")
    file = GgufFile(path)
    for wanted in GGUFReader(path).tensors:
        ours = read_tensor(file, file.tensors[wanted.name])
        expected = dequantize(wanted.data, wanted.tensor_type).reshape(ours.shape)
        assert np.array_equal(ours.numpy(), expected), wanted.name


def test_metadata_is_what_the_package_reads(tmp_path: Path) -> None:
    path = TinyGguf().write(tmp_path / "m.gguf")
    metadata = GgufFile(path).metadata
    for key, value in GGUFReader(path).fields.items():
        if not key.startswith("GGUF."):
            assert metadata[key] == value.contents(), key


def test_answers_are_those_of_the_source_model(tmp_path: Path) -> None:
    source = TinyGguf(kind=GGMLQuantizationType.Q8_0)
    driver = Driver(source.write(tmp_path / "m.gguf"))
    ours = driver.logits(driver.admit(make_req(PROMPT)))
    with torch.no_grad():
        wanted = reference(source)(torch.tensor([PROMPT])).logits[0, -1]
    assert torch.allclose(ours, wanted[: len(TOKENS)], atol=1e-4, rtol=0)


def test_padding_rows_of_the_vocabulary_are_never_scored(tmp_path: Path) -> None:
    driver = Driver(TinyGguf().write(tmp_path / "m.gguf"))
    assert driver.logits(driver.admit(make_req(PROMPT))).shape == (len(TOKENS),)


def test_b172_rope_frequency_factors_are_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = Driver(TinyGguf().write(tmp_path / "plain.gguf"))
    factors = np.linspace(1.0, 8.0, 8, dtype=np.float32)
    with caplog.at_level(logging.INFO):
        path = TinyGguf(extra={"rope_freqs.weight": factors}).write(tmp_path / "scaled.gguf")
        scaled = Driver(path)
    rotary = scaled.runner.model.model.rotary_emb
    frequencies = 10000.0 ** -(torch.arange(0, 16, 2) / 16) / torch.from_numpy(factors)
    assert torch.allclose(rotary.cos[3, :8], (3 * frequencies).cos(), atol=1e-5)
    assert not torch.equal(rotary.cos, plain.runner.model.model.rotary_emb.cos)
    assert "rope_freqs.weight" in caplog.text


def test_b172_unknown_tensor_is_skipped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    extra = {"blk.0.mystery.weight": np.ones(32, dtype=np.float32)}
    Driver(TinyGguf(extra=extra).write(tmp_path / "m.gguf"))
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert any("blk.0.mystery.weight" in record.getMessage() for record in warnings)


def test_b172_missing_tensor_is_named(tmp_path: Path) -> None:
    path = TinyGguf(without=("blk.1.ffn_up.weight",)).write(tmp_path / "m.gguf")
    with pytest.raises(ValueError, match=r"blk\.1\.ffn_up\.weight"):
        Driver(path)


def test_truncated_file_is_refused_with_a_reason(tmp_path: Path) -> None:
    path = TinyGguf().write(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:-4096])
    with pytest.raises(ValueError, match="truncated"):
        Driver(path)


def test_tensor_whose_rows_do_not_fit_its_type_is_refused(tmp_path: Path) -> None:
    path = TinyGguf().write(tmp_path / "m.gguf")
    file = GgufFile(path)
    with pytest.raises(ValueError, match=r"m\.gguf.*'t' have 33 numbers.*blocks of 32"):
        read_tensor(file, GgufTensor("t", (2, 33), GGMLQuantizationType.Q8_0, 0))


def test_damaged_header_is_refused_with_a_reason(tmp_path: Path) -> None:
    path = TinyGguf().write(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match="damaged"):
        Driver(path)


def reference(source: TinyGguf) -> LlamaForCausalLM:
    """transformers' model with the source's numbers as quantization left them."""
    config = LlamaConfig(
        vocab_size=len(TOKENS) + 6,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        rms_norm_eps=1e-5,
        max_position_embeddings=128,
        tie_word_embeddings=True,
    )
    state = {
        hf_name: torch.from_numpy(in_hf_order(name, as_stored(source, name)))
        for name, hf_name in reference_names().items()
    }
    model = LlamaForCausalLM(config).eval()
    model.load_state_dict(state, strict=False)
    return model


def as_stored(source: TinyGguf, name: str) -> np.ndarray:
    values = source.tensors[name]
    if values.ndim == 1:
        return values
    return dequantize(quantize(values, source.kind), source.kind)


def in_hf_order(name: str, values: np.ndarray) -> np.ndarray:
    """Row 2 i + j of a head in the file is row j * head_dim / 2 + i of the HF model."""
    heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(name.split(".")[-2])
    if heads is None:
        return values
    head_dim = values.shape[0] // heads
    out = np.empty_like(values)
    for row in range(values.shape[0]):
        head, within = divmod(row, head_dim)
        pair, part = divmod(within, 2)
        out[head * head_dim + part * head_dim // 2 + pair] = values[row]
    return out


def reference_names() -> dict[str, str]:
    names = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
    }
    parts = {
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
    for layer in range(2):
        for gguf_part, hf_part in parts.items():
            names[f"blk.{layer}.{gguf_part}.weight"] = f"model.layers.{layer}.{hf_part}.weight"
    return names
