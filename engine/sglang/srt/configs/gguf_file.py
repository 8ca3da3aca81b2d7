"""A GGUF file: its metadata, its tensor table and the raw bytes of each tensor."""

import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
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

    The reader of the `gguf` package makes an object of each vocabulary entry (1.6 s for 49,152
    tokens); this one needs a tenth of that, and both agree.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, GgufTensor] = {}
        self._map = np.memmap(path, dtype=np.uint8, mode="r")
        try:
            self._data_start = self._read_header(_Cursor(memoryview(self._map)))
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise ValueError(
                f"{path} ends inside its header or is damaged ({error}); download it again."
            ) from error

    @cached_property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    def get(self, key: str, default: Any = None) -> Any:
        """The metadata value of `key`, where `{arch}` stands for the architecture's name."""
        return self.metadata.get(key.replace("{arch}", self.architecture), default)

    def tensor_bytes(self, name: str, row_bytes: int) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor, [..., row_bytes]; a view of the mapped file."""
        tensor = self.tensors[name]
        rows = tensor.shape[:-1]
        start = self._data_start + tensor.offset
        size = int(np.prod(rows, dtype=np.int64)) * row_bytes
        if start + size > self._map.size:
            raise ValueError(
                f"{self.path} is truncated: tensor {name!r} ends at byte {start + size}, "
                f"the file has {self._map.size}; download it again."
            )
        return self._map[start : start + size].reshape(*rows, row_bytes)

    def _read_header(self, cursor: "_Cursor") -> int:
        if cursor.take(4) != _MAGIC:
            raise ValueError(f"{self.path} is not a GGUF file: it does not start with 'GGUF'.")
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
            name = cursor.string()
            dims = [cursor.scalar("<Q") for _ in range(cursor.scalar("<I"))]
            type_id, offset = cursor.scalar("<I"), cursor.scalar("<Q")
            self.tensors[name] = GgufTensor(name, tuple(reversed(dims)), type_id, offset)
        alignment = int(self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT))
        return -(-cursor.position // alignment) * alignment


class _Cursor:
    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.position = 0

    def take(self, size: int) -> bytes:
        if self.position + size > len(self._data):
            raise IndexError(f"byte {self.position + size} of {len(self._data)}")
        chunk = bytes(self._data[self.position : self.position + size])
        self.position += size
        return chunk

    def scalar(self, form: str) -> Any:
        value = struct.unpack_from(form, self._data, self.position)[0]
        self.position += struct.calcsize(form)
        return value

    def string(self) -> str:
        # Vocabularies of some converters hold pieces that are no UTF-8 on their own.
        return self.take(self.scalar("<Q")).decode("utf-8", errors="replace")

    def value(self, type_id: int) -> Any:
        if type_id == _STRING:
            return self.string()
        if type_id == _ARRAY:
            item_type, count = self.scalar("<I"), self.scalar("<Q")
            if item_type in _SCALARS:
                dtype = np.dtype(_SCALARS[item_type])
                return np.frombuffer(self.take(count * dtype.itemsize), dtype).tolist()
            return [self.value(item_type) for _ in range(count)]
        if type_id not in _SCALARS:
            raise IndexError(f"value type {type_id} at byte {self.position}")
        return self.scalar(_SCALARS[type_id])
