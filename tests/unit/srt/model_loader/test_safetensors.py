"""Folders of safetensors files: complete ones load, others say what is wrong."""

import json
import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.unit.srt.models.driver import Driver, make_req
from tests.unit.srt.models.test_llama_exact import save_reference

PROMPT = [4, 8, 15, 16]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_reference(tmp_path, num_key_value_heads=2, tie_word_embeddings=True)
    return tmp_path


def logits(folder: Path) -> torch.Tensor:
    driver = Driver(folder)
    return driver.logits(driver.admit(make_req(PROMPT)))


def test_index_with_several_files_gives_the_same_model(folder: Path) -> None:
    whole = logits(folder)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, own in halves.items():
        save_file({name: tensors[name] for name in own}, folder / file)
    index = {name: file for file, own in halves.items() for name in own}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert torch.equal(logits(folder), whole)


def test_file_of_the_index_that_is_absent_is_named(folder: Path) -> None:
    index = {"weight_map": {"model.norm.weight": "lost.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(FileNotFoundError, match=r"lost\.safetensors"):
        Driver(folder)


@pytest.mark.parametrize("kept", [0, 4, 100, -1000])
def test_truncated_file_is_named_with_advice(folder: Path, kept: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"model\.safetensors.*truncated.*download it again"):
        Driver(folder)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weight_map": {"a": 1}}'])
def test_broken_index_is_named(folder: Path, content: str) -> None:
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ValueError, match=r"model\.safetensors\.index\.json"):
        Driver(folder)


def test_missing_weight_is_named(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.self_attn.k_proj.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.layers\.1\.self_attn\.k_proj\.weight"):
        Driver(folder)


def test_weight_of_another_shape_is_named(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(5)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.norm\.weight.*\[96\].*\[5\]"):
        Driver(folder)


def test_unknown_weight_is_skipped_with_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "model.extra.weight": torch.ones(3)}, folder / "model.safetensors")
    Driver(folder)
    assert any(
        record.levelno == logging.WARNING and "model.extra.weight" in record.getMessage()
        for record in caplog.records
    )


def test_dummy_weights_need_no_files(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    driver = Driver(folder, load_format="dummy")
    assert driver.logits(driver.admit(make_req(PROMPT))).isfinite().all()


def test_format_that_the_files_do_not_have_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="gguf.*safetensors"):
        Driver(folder, load_format="gguf")


def test_loading_reports_bytes_up_to_the_whole(folder: Path) -> None:
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.model_loader.loader import load_model

    seen: list[tuple[int, int]] = []
    load_model(
        ModelConfig.from_path(folder),
        "auto",
        torch.float32,
        torch.device("cpu"),
        progress=lambda done, total: seen.append((done, total)),
    )
    size = (folder / "model.safetensors").stat().st_size
    assert seen == sorted(seen)
    assert seen[-1] == (size, size)
