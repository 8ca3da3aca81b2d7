"""Tensors of a folder of safetensors files, one after the other."""

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from sglang.srt.configs.json_file import read_json

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
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(n, str) for n in weight_map.values()):
        raise ValueError(f"{index} must map tensors to files in weight_map; download it again.")
    files = [folder / name for name in sorted(set(weight_map.values()))]
    absent = [file.name for file in files if not file.is_file()]
    if absent:
        raise FileNotFoundError(
            f"{index} names files that are not in the folder: {', '.join(absent)}; "
            "download the model again."
        )
    return files


def iterate_safetensors(files: list[Path]) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and tensor, memory-mapped; no file is held in memory as a whole.

    ValueError names a file that is truncated or damaged.
    """
    for file in files:
        try:
            yield from _tensors_of(file)
        except SafetensorError as error:
            raise ValueError(
                f"{file} is truncated or damaged ({error}); download it again."
            ) from error


def _tensors_of(file: Path) -> Iterator[tuple[str, torch.Tensor]]:
    with safe_open(file, framework="pt", device="cpu") as tensors:
        for name in tensors.keys():  # noqa: SIM118 - the handle is no mapping
            yield name, tensors.get_tensor(name)
