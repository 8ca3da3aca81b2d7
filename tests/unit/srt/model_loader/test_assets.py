"""The text files of a model: used where they are, made once where they are not."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from sglang.srt.environ import envs
from sglang.srt.model_loader.assets import AssetsError, ensure_assets
from tests.unit.srt.model_loader.tiny_gguf import (
    CONTROL,
    END_OF_TURN,
    STOP,
    TOKENS,
    USER_DEFINED,
    TinyGguf,
)


@pytest.fixture
def assets(tmp_path: Path) -> Path:
    """The folder made for a GGUF file."""
    with envs.SGLANG_CACHE_DIR.override(tmp_path / "cache"):
        return ensure_assets(TinyGguf().write(tmp_path / "m.gguf"))


@pytest.mark.parametrize("text", [*CONTROL, *USER_DEFINED])
@pytest.mark.parametrize("around", ["{}", "a{}b", "th {} 12"])
def test_control_and_user_tokens_are_one_id_in_any_text(
    assets: Path, text: str, around: str
) -> None:
    ids = Tokenizer.from_file(str(assets / "tokenizer.json")).encode(around.format(text)).ids
    assert ids.count(TOKENS.index(text)) == 1


def test_digits_and_spaces_are_cut_as_the_file_says(assets: Path) -> None:
    encoded = Tokenizer.from_file(str(assets / "tokenizer.json")).encode("th th 12")
    assert encoded.tokens == ["th", "Ġth", "Ġ", "1", "2"]


def test_template_and_end_tokens_are_written(assets: Path) -> None:
    assert "<|im_end|>" in (assets / "chat_template.jinja").read_text()
    generation = json.loads((assets / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [STOP, END_OF_TURN]
    assert json.loads((assets / "config.json").read_text())["num_hidden_layers"] == 2
    assert json.loads((assets / "tokenizer_config.json").read_text())["eos_token"] == "<|stop|>"


def test_files_are_made_once_per_state_of_the_model(tmp_path: Path) -> None:
    with envs.SGLANG_CACHE_DIR.override(tmp_path / "cache"):
        path = TinyGguf().write(tmp_path / "m.gguf")
        first = ensure_assets(path)
        (first / "mark").touch()
        assert (ensure_assets(path) / "mark").exists()
        TinyGguf(eos_token_id=END_OF_TURN).write(path)
        assert ensure_assets(path) != first


def test_folder_with_a_tokenizer_is_used_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    assert ensure_assets(tmp_path) == tmp_path


def test_folder_whose_tokenizer_cannot_be_converted_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with (
        envs.SGLANG_CACHE_DIR.override(tmp_path / "cache"),
        pytest.raises(AssetsError, match=r"no tokenizer\.json.*--tokenizer-path"),
    ):
        ensure_assets(tmp_path)
