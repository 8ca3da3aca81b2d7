"""Recognising a diffusion pipeline by its files."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from sglang.multimodal_gen import pipeline
from sglang.multimodal_gen.pipeline import DiffusionPipeline, find_pipeline

INDEX = {"_class_name": "WanPipeline", "_diffusers_version": "0.35.0", "vae": ["diffusers", "V"]}


@pytest.mark.parametrize("name", pipeline.INDEX_FILES)
def test_an_index_with_a_diffusers_version_is_a_pipeline(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(json.dumps(INDEX))
    assert find_pipeline(tmp_path) == DiffusionPipeline(name, "0.35.0", "WanPipeline")


@pytest.mark.parametrize("name", [None, 5, ["x"], ""])
def test_a_class_name_that_is_no_text_is_none(tmp_path: Path, name: Any) -> None:
    (tmp_path / "model_index.json").write_text(json.dumps({**INDEX, "_class_name": name}))
    assert find_pipeline(tmp_path) == DiffusionPipeline("model_index.json", "0.35.0", None)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff\xfe\x00", b"{}", b'{"_diffusers_version": 1}', b"[" * 200_000,
     json.dumps(INDEX | {"pad": "x" * pipeline.MAX_INDEX_BYTES}).encode()],
    ids=["empty", "cut off", "list", "not text", "no version", "number", "deep", "large"],
)  # fmt: skip
def test_a_malformed_index_is_no_pipeline(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model_index.json").write_bytes(content)
    assert find_pipeline(tmp_path) is None


def test_a_malformed_index_does_not_hide_the_other(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text("{")
    (tmp_path / "modular_model_index.json").write_text(json.dumps(INDEX))
    found = find_pipeline(tmp_path)
    assert found is not None and found.index_file == "modular_model_index.json"


def test_a_pipe_or_a_folder_of_that_name_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model_index.json")
    (tmp_path / "modular_model_index.json").mkdir()
    assert find_pipeline(tmp_path) is None


def test_a_file_or_nothing_is_no_pipeline(tmp_path: Path) -> None:
    assert find_pipeline(tmp_path) is None
    assert find_pipeline(tmp_path / "missing") is None
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert find_pipeline(tmp_path / "model.gguf") is None
    assert find_pipeline("bad\0name") is None
