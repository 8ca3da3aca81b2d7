"""Tensors of a folder of safetensors files, one after the other."""

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open

_INDEX = "model.safetensors.index.json"


def safetensors_files(folder: Path) -> list[Path]:
    """The files that the index names, or all of the folder if there is no index."""
    index = folder / _INDEX
    if not index.is_file():
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise FileNotFoundError(
                f"{folder} holds no .safetensors file; weights in other formats must be converted "
                "to safetensors first."
            )
        return files
    weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    files = [folder / name for name in sorted(set(weight_map.values()))]
    absent = [file.name for file in files if not file.is_file()]
    if absent:
        raise FileNotFoundError(
            f"{index} names files that are not in the folder: {', '.join(absent)}; "
            "download the model again."
        )
    return files


def iterate_safetensors(files: list[Path]) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and tensor, memory-mapped; no file is held in memory as a whole."""
    for file in files:
        with safe_open(file, framework="pt", device="cpu") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - the handle is no mapping
                yield name, tensors.get_tensor(name)
