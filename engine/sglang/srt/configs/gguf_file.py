"""A GGUF file: its metadata, its tensor table and the raw bytes of each tensor."""

import math
import reprlib
import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")
_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
_MAX_DEPTH = 4  # of arrays in arrays
_MAX_DIMS = 4  # of a tensor
# Value type → struct format, little-endian.
_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}


@dataclass(frozen=True)
class GgufTensor:
    """One row of the tensor table. `shape` is in torch's order: rows first."""

    name: str
    shape: tuple[int, ...]
    type_id: int  # a gguf.GGMLQuantizationType
    offset: int  # bytes from the start of the data section


class GgufFile:
    """Reads the header at once and tensor bytes on demand, memory-mapped.

    Whatever is wrong with the file is a ValueError that names it. The reader of the `gguf` package
    makes an object of each vocabulary entry (1.6 s for 49,152 tokens); this one needs a tenth of
    that, and both agree.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, GgufTensor] = {}
        if not path.stat().st_size:
            raise ValueError(f"{path} is empty; download it again.")
        self._map = np.memmap(path, dtype=np.uint8, mode="r")
        try:
            self._data_start = self._read_header(_Cursor(memoryview(self._map)))
        except _DamagedHeader as error:
            raise ValueError(
                f"{path} ends inside its header or is damaged ({error}); download it again."
            ) from error
        for tensor in self.tensors.values():
            self._check_end(tensor, 0)

    @cached_property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    # ---------------------------------------------------------------- metadata

    def get(self, key: str, default: Any = None) -> Any:
        """The metadata value of `key`, where `{arch}` stands for the architecture's name."""
        return self.metadata.get(self._full(key), default)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number; without a default the key is required."""
        value = self.get(key, default)
        if value is None:
            raise ValueError(f"{self.path} lacks the metadata key {self._full(key)}.")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value):
            raise self.wrong(key, value, "a finite number")
        return float(value)

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self.number(key, default)
        if value < 1 or value != int(value):
            raise self.wrong(key, value, "a whole number of at least 1")
        return int(value)

    def text(self, key: str) -> str | None:
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise self.wrong(key, value, "text")
        return value

    def list_of(self, kind: type[T], key: str) -> list[T]:
        """An array of one kind; empty when the file has no such key."""
        value = self.get(key, [])
        if not isinstance(value, list) or not all(type(item) is kind for item in value):
            raise self.wrong(key, value, f"an array of {kind.__name__}")
        return value

    def token_id(self, name: str) -> int | None:
        """An id of the file's vocabulary, by its name after `tokenizer.ggml.`."""
        key = f"tokenizer.ggml.{name}"
        value, num_tokens = self.get(key), len(self.list_of(str, "tokenizer.ggml.tokens"))
        if value is None:
            return None
        if type(value) is not int or value < 0 or (num_tokens and value >= num_tokens):
            raise self.wrong(key, value, f"an id of the {num_tokens} tokens")
        return value

    def wrong(self, key: str, value: object, allowed: str) -> ValueError:
        """The error to raise about a metadata value."""
        return ValueError(
            f"{self.path} is damaged: the metadata key {self._full(key)} must be {allowed}, got "
            f"{reprlib.repr(value)}; download it again."
        )

    def _full(self, key: str) -> str:
        return key.replace("{arch}", self.architecture)

    # ---------------------------------------------------------------- tensors

    def tensor_bytes(self, name: str, row_bytes: int) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor, [..., row_bytes]; a view of the mapped file."""
        tensor = self.tensors[name]
        rows = tensor.shape[:-1]
        start, size = self._data_start + tensor.offset, math.prod(rows) * row_bytes
        self._check_end(tensor, size)
        return self._map[start : start + size].reshape(*rows, row_bytes)

    def _check_end(self, tensor: GgufTensor, size: int) -> None:
        end = self._data_start + tensor.offset + size
        if end > self._map.size:
            raise ValueError(
                f"{self.path} is truncated: tensor {tensor.name!r} ends at byte {end} or later, "
                f"the file has {self._map.size}; download it again."
            )

    # ---------------------------------------------------------------- header

    def _read_header(self, cursor: "_Cursor") -> int:
        """The first byte of the tensors' data."""
        if bytes(self._map[:4]) != _MAGIC:
            raise ValueError(f"{self.path} is not a GGUF file: it does not start with 'GGUF'.")
        cursor.take(len(_MAGIC))
        version = cursor.scalar("<I")
        if version not in _VERSIONS:
            raise ValueError(
                f"{self.path} has GGUF version {version}; versions 2 and 3, little-endian, can be "
                "read."
            )
        num_tensors, num_values = cursor.scalar("<Q"), cursor.scalar("<Q")
        for _ in range(num_values):
            key = cursor.string()
            self.metadata[key] = cursor.value(cursor.scalar("<I"))
        for _ in range(num_tensors):
            tensor = cursor.tensor()
            self.tensors[tensor.name] = tensor
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment < 1:
            raise _DamagedHeader(f"general.alignment is {reprlib.repr(alignment)}")
        return -(-cursor.position // alignment) * alignment


class _DamagedHeader(Exception):
    """What cannot be right; the file's name is added where it is known."""


class _Cursor:
    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.position = 0

    def take(self, size: int) -> memoryview:
        end = self.position + size
        if end > len(self._data):
            raise _DamagedHeader(f"byte {end} of {len(self._data)}")
        chunk = self._data[self.position : end]
        self.position = end
        return chunk

    def scalar(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def string(self) -> str:
        # Vocabularies of some converters hold pieces that are no UTF-8 on their own.
        return bytes(self.take(self.scalar("<Q"))).decode("utf-8", errors="replace")

    def value(self, type_id: int, depth: int = 0) -> Any:
        if type_id == _STRING:
            return self.string()
        if type_id == _ARRAY:
            item_type, count = self.scalar("<I"), self.scalar("<Q")
            if item_type in _SCALARS:
                dtype = np.dtype(_SCALARS[item_type])
                return np.frombuffer(self.take(count * dtype.itemsize), dtype).tolist()
            if depth == _MAX_DEPTH:
                raise _DamagedHeader(f"arrays in arrays at byte {self.position}")
            return [self.value(item_type, depth + 1) for _ in range(count)]
        if type_id not in _SCALARS:
            raise _DamagedHeader(f"value type {type_id} at byte {self.position}")
        return self.scalar(_SCALARS[type_id])

    def tensor(self) -> GgufTensor:
        name, num_dims = self.string(), self.scalar("<I")
        if not 1 <= num_dims <= _MAX_DIMS:
            raise _DamagedHeader(f"tensor {reprlib.repr(name)} of {num_dims} dimensions")
        dims = [self.scalar("<Q") for _ in range(num_dims)]
        if 0 in dims:
            raise _DamagedHeader(f"tensor {reprlib.repr(name)} of shape {dims}")
        return GgufTensor(name, tuple(reversed(dims)), self.scalar("<I"), self.scalar("<Q"))
