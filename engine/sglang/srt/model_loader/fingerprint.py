"""What tells one set of weights from another without reading all of it."""

import hashlib
from pathlib import Path

WEIGHT_SUFFIXES = (".safetensors", ".gguf")
NUM_SAMPLES = 16
SAMPLE_BYTES = 4096


def weights_fingerprint(model_path: Path, *settings: object) -> str:
    """A hash over the model's config, and names, sizes and samples of its weight files; and over
    the settings, which are whatever else changes what is computed from them.
    """
    digest = hashlib.sha256(repr(settings).encode())
    files = [model_path] if model_path.is_file() else sorted(model_path.iterdir())
    for file in files:
        if file.name == "config.json":
            digest.update(file.read_bytes())
        elif file.suffix in WEIGHT_SUFFIXES:
            size = file.stat().st_size
            digest.update(repr((file.name if len(files) > 1 else "", size)).encode())
            _add_samples(digest, file, size)
    return digest.hexdigest()


def _add_samples(digest: "hashlib._Hash", file: Path, size: int) -> None:
    with file.open("rb") as stream:
        for i in range(NUM_SAMPLES):
            stream.seek(max(size - SAMPLE_BYTES, 0) * i // (NUM_SAMPLES - 1))
            digest.update(stream.read(SAMPLE_BYTES))
