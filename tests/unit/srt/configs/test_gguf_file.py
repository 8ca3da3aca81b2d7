"""A damaged GGUF file is refused in one sentence that names it, whatever is wrong with it."""

import random
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sglang.srt.configs.gguf_file import GgufFile
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.model_loader.gguf_tokenizer import is_convertible, tokenizer_config, tokenizer_json
from sglang.srt.model_loader.gguf_weights import iterate_gguf
from tests.unit.srt.model_loader.tiny_gguf import TinyGguf

NUM_FLIPS, NUM_CUTS = 600, 150


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return TinyGguf().write(tmp_path_factory.mktemp("gguf") / "m.gguf").read_bytes()


def read_all(path: Path) -> None:
    """Everything that loading looks at, but for the model."""
    file = GgufFile(path)
    config = ModelConfig.from_path(path)
    if is_convertible(file):
        tokenizer_json(file)
        tokenizer_config(file, config.context_len)
    with np.errstate(all="ignore"):  # numbers of a damaged file may be anything
        for _ in iterate_gguf(file, config):
            pass


def refusal(path: Path, content: bytes) -> str | None:
    """What is said about the file; None if it can be read. Anything but ValueError is raised."""
    path.write_bytes(content)
    try:
        read_all(path)
    except ValueError as error:
        return str(error)
    return None


def header_len(whole: bytes, folder: Path) -> int:
    path = folder / "whole.gguf"
    path.write_bytes(whole)
    return GgufFile(path)._data_start


def test_flipped_bytes_are_read_or_refused_by_name(whole: bytes, tmp_path: Path) -> None:
    rng, size = random.Random(172), header_len(whole, tmp_path)
    refused = 0
    for _ in range(NUM_FLIPS):
        damaged = bytearray(whole)
        position = rng.randrange(size)
        damaged[position] ^= rng.choice([0x01, 0x80, 0xFF, rng.randrange(1, 256)])
        said = refusal(tmp_path / "m.gguf", bytes(damaged))
        if said is not None:
            refused += 1
            assert str(tmp_path / "m.gguf") in said, (position, said)
            assert "\n" not in said, (position, said)
    assert refused > NUM_FLIPS // 10


def test_files_cut_anywhere_are_refused_by_name(whole: bytes, tmp_path: Path) -> None:
    rng, size = random.Random(7), header_len(whole, tmp_path)
    cuts = [0, 3, 4, 8, 23, 24, size, len(whole) - 1]
    cuts += [rng.randrange(size) for _ in range(NUM_CUTS)]
    cuts += [rng.randrange(size, len(whole)) for _ in range(NUM_CUTS // 10)]
    for cut in cuts:
        said = refusal(tmp_path / "m.gguf", whole[:cut])
        assert said is not None and str(tmp_path / "m.gguf") in said, (cut, said)


def metadata(key: str, type_id: int, value: bytes) -> bytes:
    name = key.encode()
    return struct.pack("<Q", len(name)) + name + struct.pack("<I", type_id) + value


def u32(key: str, value: int) -> bytes:
    return metadata(key, 4, struct.pack("<I", value))


def header(*values: bytes, num_values: int | None = None, tensors: bytes = b"") -> bytes:
    counts = struct.pack(
        "<IQQ", 3, bool(tensors), len(values) if num_values is None else num_values
    )
    return b"GGUF" + counts + b"".join(values) + tensors


def tensor(*dims: int, offset: int = 0) -> bytes:
    table = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return struct.pack("<Q", 1) + b"t" + table + struct.pack("<IQ", 0, offset)


def nested_arrays(depth: int) -> bytes:
    return struct.pack("<IQ", 9, 1) * depth + struct.pack("<IQ", 0, 0)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b"GGML" + bytes(60), "is not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 99, 0, 0), "version 99"),
        (header(u32("general.alignment", 0)), "general.alignment is 0"),
        (header(metadata("general.alignment", 8, struct.pack("<Q", 1) + b"x")), "alignment is 'x'"),
        (header(num_values=1 << 60), "damaged"),
        (header(metadata("a", 8, struct.pack("<Q", 1 << 62))), "damaged"),
        (header(metadata("a", 9, struct.pack("<IQ", 12, 1 << 62))), "damaged"),
        (header(metadata("a", 9, nested_arrays(5000))), "arrays in arrays"),
        (header(metadata("a", 77, b"")), "value type 77"),
        (header(tensors=tensor()), "of 0 dimensions"),
        (header(tensors=tensor(4, 4, 4, 4, 4)), "of 5 dimensions"),
        (header(tensors=tensor(4, 0)), "of shape"),
        (header(tensors=tensor(4, offset=1 << 40)), "truncated"),
    ],
)
def test_damaged_header_says_what_is_wrong(tmp_path: Path, content: bytes, why: str) -> None:
    said = refusal(tmp_path / "m.gguf", content)
    assert said is not None
    assert why in said and str(tmp_path / "m.gguf") in said


def test_tensor_larger_than_any_file_is_truncated(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(header(tensors=tensor(1 << 40, 1 << 40, 1 << 40)) + bytes(64))
    with pytest.raises(ValueError, match="truncated"):
        GgufFile(path).tensor_bytes("t", 4 << 40)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda m: m.update({"llama.attention.head_count": 0}), "attention.head_count must be"),
        (lambda m: m.update({"llama.block_count": 1 << 31}), "number of tensors"),
        (lambda m: m.update({"llama.embedding_length": 1 << 31}), "tensor table"),
        (lambda m: m.update({"llama.feed_forward_length": "96"}), "a finite number"),
        (lambda m: m.update({"llama.attention.key_length": 17}), "tensor table"),
        (lambda m: m.update({"llama.rope.freq_base": float("nan")}), "a finite number"),
        (lambda m: m.update({"llama.rope.scaling.type": "spiral"}), "one of default"),
        (lambda m: m.update({"tokenizer.ggml.tokens": [1, 2]}), "an array of str"),
        (lambda m: m.update({"tokenizer.ggml.eos_token_id": 1 << 20}), "an id of the"),
        (lambda m: m.pop("llama.context_length"), "lacks the metadata key llama.context_length"),
    ],
)
def test_metadata_that_cannot_be_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[dict[str, object]], object],
    why: str,
) -> None:
    path = TinyGguf().write(tmp_path / "m.gguf")
    read = GgufFile._read_header

    def changed(self: GgufFile, cursor: object) -> int:
        start = read(self, cursor)  # type: ignore[arg-type]
        change(self.metadata)
        return start

    monkeypatch.setattr(GgufFile, "_read_header", changed)
    with pytest.raises(ValueError, match=why) as caught:
        ModelConfig.from_path(path)
    assert str(path) in str(caught.value)
