"""What a model's files say about it."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.environ import envs
from tests.unit.srt.model_loader.tiny_gguf import END_OF_TURN, STOP, TOKENS, TinyGguf

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "eos_token_id": 2,
}
TOKENIZER = {
    "model": {"vocab": {"a": 0, "b": 1, "</s>": 2}},
    "added_tokens": [{"id": 99, "content": "<|end|>"}],
}


def write_folder(folder: Path, **files: dict[str, Any]) -> Path:
    for name, content in {"config": CONFIG, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_end_tokens_of_all_files_are_united(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path,
        generation_config={"eos_token_id": [7, 2]},
        tokenizer_config={"eos_token": {"content": "<|end|>"}},
        tokenizer=TOKENIZER,
    )
    assert set(ModelConfig.from_path(folder).eos_token_ids) == {2, 7, 99}


def test_vocabulary_ends_where_the_tokenizer_ends(tmp_path: Path) -> None:
    config = ModelConfig.from_path(write_folder(tmp_path, tokenizer=TOKENIZER))
    assert (config.vocab_size, config.padded_vocab_size) == (100, 128)


@pytest.mark.parametrize("name", ["config", "generation_config", "tokenizer", "tokenizer_config"])
@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff"])
def test_file_that_is_no_json_object_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    folder = write_folder(tmp_path)
    (folder / f"{name}.json").write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name}\.json"):
        ModelConfig.from_path(folder)


def test_every_file_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path, tokenizer=TOKENIZER, tokenizer_config={"eos_token": "</s>"})
    names: list[str] = []
    read_text = Path.read_text

    def counted(path: Path, *arguments: Any, **options: Any) -> str:
        names.append(path.name)
        return read_text(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", counted)
    ModelConfig.from_path(tmp_path)
    assert sorted(names) == ["config.json", "tokenizer.json", "tokenizer_config.json"]


def test_sampling_defaults_come_from_the_generation_config(tmp_path: Path) -> None:
    generation = {"temperature": 0.6, "top_p": 0.9, "do_sample": True}
    config = ModelConfig.from_path(write_folder(tmp_path, generation_config=generation))
    assert config.default_sampling_params == {"temperature": 0.6, "top_p": 0.9}


def test_both_spellings_of_rotary_settings_are_read(tmp_path: Path) -> None:
    old = {**CONFIG, "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}
    new = {
        **CONFIG,
        "rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0},
    }
    rope = ModelConfig.from_path(write_folder(tmp_path, config=old)).rope
    assert rope == ModelConfig.from_path(write_folder(tmp_path, config=new)).rope
    assert (rope.theta, rope.rope_type, rope.factor) == (5e5, "linear", 2.0)


def test_unsupported_rotary_scaling_is_refused(tmp_path: Path) -> None:
    config = {**CONFIG, "rope_scaling": {"rope_type": "longrope", "factor": 4.0}}
    with pytest.raises(ValueError, match="longrope.*supported"):
        ModelConfig.from_path(write_folder(tmp_path, config=config))


@pytest.mark.parametrize(
    ("options", "windows"),
    [
        ({"sliding_window": None}, ()),
        ({"sliding_window": 100}, (100, 100)),
        ({"sliding_window": 100, "use_sliding_window": False}, ()),
        (
            {"sliding_window": 100, "layer_types": ["full_attention", "sliding_attention"]},
            (-1, 100),
        ),
        ({"sliding_window": 100, "layer_types": ["full_attention"] * 2}, ()),
        ({"sliding_window": 100, "model_type": "gemma2"}, (100, -1)),
        ({"sliding_window": 100, "model_type": "qwen2", "max_window_layers": 1}, (-1, 100)),
    ],
)
def test_windows_of_layers_leave_the_context_whole(
    options: dict[str, Any], windows: tuple[int, ...], tmp_path: Path
) -> None:
    config = {**CONFIG, "num_hidden_layers": 2, **options}
    model = ModelConfig.from_path(write_folder(tmp_path, config=config))
    assert (model.layer_windows, model.context_len) == (windows, 512)
    assert [model.window_of(layer) for layer in range(2)] == list(windows or (-1, -1))


def test_yarn_grows_scores_by_what_the_file_says(tmp_path: Path) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    growth = 0.1 * math.log(4.0) + 1.0
    for more, expected in (
        ({}, growth),
        ({"attention_factor": 1.5}, 1.5),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
    ):
        config = {**CONFIG, "rope_scaling": {**scaling, **more}}
        rope = ModelConfig.from_path(write_folder(tmp_path, config=config)).rope
        assert rope.attention_factor == pytest.approx(expected)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"num_experts_per_tok": 9}, "cannot take 9 experts: it may take 1 to 8"),
        ({"n_group": 3, "topk_group": 1}, "8 experts in 3 groups"),
        ({"n_group": 4, "topk_group": 5}, "a token takes 5"),
    ],
)
def test_experts_that_cannot_be_chosen_are_refused(
    options: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    experts = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    folder = write_folder(tmp_path, config={**CONFIG, **experts, **options})
    with pytest.raises(ValueError, match=reason):
        ModelConfig.from_path(folder)


def test_context_may_be_shortened_but_not_lengthened(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    assert ModelConfig.from_path(folder, 64).context_len == 64
    with pytest.raises(ValueError, match="513.*512"):
        ModelConfig.from_path(folder, 513)
    with envs.SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN.override(True):
        assert ModelConfig.from_path(folder, 513).context_len == 513


def test_missing_keys_are_named(tmp_path: Path) -> None:
    config = {key: value for key, value in CONFIG.items() if key != "hidden_size"}
    with pytest.raises(ValueError, match="hidden_size"):
        ModelConfig.from_path(write_folder(tmp_path, config=config))


def test_gguf_gives_sizes_and_every_end_token(tmp_path: Path) -> None:
    config = ModelConfig.from_path(TinyGguf().write(tmp_path / "m.gguf"))
    assert config.eos_token_ids == (STOP, END_OF_TURN)
    assert (config.num_hidden_layers, config.head_dim, config.context_len) == (2, 16, 128)
    assert (config.vocab_size, config.padded_vocab_size) == (len(TOKENS), len(TOKENS) + 6)
    assert config.tie_word_embeddings


def test_generation_config_beside_a_gguf_file_counts_too(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 3, "top_p": 0.5}')
    config = ModelConfig.from_path(TinyGguf().write(tmp_path / "m.gguf"))
    assert set(config.eos_token_ids) == {STOP, END_OF_TURN, 3}
    assert config.default_sampling_params == {"top_p": 0.5}


def test_folder_with_one_gguf_file_is_that_file(tmp_path: Path) -> None:
    path = TinyGguf().write(tmp_path / "m.gguf")
    assert ModelConfig.from_path(tmp_path).model_path == path


def test_folder_with_two_gguf_files_asks_for_one(tmp_path: Path) -> None:
    TinyGguf().write(tmp_path / "a.gguf")
    TinyGguf().write(tmp_path / "b.gguf")
    with pytest.raises(ValueError, match=r"a\.gguf, b\.gguf"):
        ModelConfig.from_path(tmp_path)


def test_absent_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="neither a folder nor"):
        ModelConfig.from_path(tmp_path / "nothing")


def test_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(64))
    with pytest.raises(ValueError, match="not a GGUF file"):
        ModelConfig.from_path(path)
