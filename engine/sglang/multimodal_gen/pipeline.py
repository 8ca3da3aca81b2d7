"""Tells from the files of a local folder whether it holds a diffusion pipeline."""

import json
import logging
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

INDEX_FILES = ("model_index.json", "modular_model_index.json")
MAX_INDEX_BYTES = 1 << 20  # the index of a pipeline takes a few KiB
VERSION_KEY = "_diffusers_version"
CLASS_KEY = "_class_name"


@dataclass(frozen=True)
class DiffusionPipeline:
    """What the index file of a pipeline says of itself."""

    index_file: str
    diffusers_version: str
    class_name: str | None  # None: the file names none


def find_pipeline(folder: str | Path) -> DiffusionPipeline | None:
    """The pipeline in a local folder, or None. A file that cannot be read is no pipeline."""
    for name in INDEX_FILES:
        pipeline = _read_index(Path(folder) / name)
        if pipeline is not None:
            return pipeline
    return None


def _read_index(path: Path) -> DiffusionPipeline | None:
    try:
        if not path.is_file():  # NOTE: opening a pipe of that name would wait for a writer
            return None
        with path.open("rb") as file:
            data = file.read(MAX_INDEX_BYTES + 1)
        if len(data) > MAX_INDEX_BYTES:
            logger.info("%s exceeds %d bytes, so it is no index.", path, MAX_INDEX_BYTES)
            return None
        index = json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        logger.info("%s cannot be read as an index: %s", path, error)
        return None
    if not isinstance(index, dict) or not isinstance(index.get(VERSION_KEY), str):
        return None
    name = index.get(CLASS_KEY)
    return DiffusionPipeline(
        path.name, index[VERSION_KEY], name if isinstance(name, str) and name else None
    )
