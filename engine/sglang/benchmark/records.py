"""The objects of a data set's file; a field of a wrong kind names its record."""

import gzip
import json
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang.benchmark.errors import BenchmarkError
from sglang.benchmark.options import Options

_SHOWN_CHARS = 80


@dataclass(frozen=True)
class Kind:
    """What a field may be."""

    says: str
    fits: Callable[[Any], bool]

    def or_none(self) -> "Kind":
        return Kind(f"{self.says} or null", lambda value: value is None or self.fits(value))


def whole(least: int) -> Kind:
    return Kind(f"a whole number from {least}", lambda value: _is_whole(value, least))


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max  # no NaN, no infinity


def _is_list(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(fits(one) for one in value)


NUMBER = Kind("a number", _is_number)
TEXT = Kind("a text", lambda value: isinstance(value, str))
OBJECTS = Kind(
    "a list of objects", lambda value: _is_list(value, lambda one: isinstance(one, dict))
)
SOME_OBJECTS = Kind(
    "a list of objects, at least one", lambda value: OBJECTS.fits(value) and len(value) > 0
)
HASHES = Kind(
    "a list of whole numbers from 0, at least one",
    lambda value: _is_list(value, lambda one: _is_whole(one, 0)) and len(value) > 0,
)


@dataclass(frozen=True)
class Record:
    where: str  # the file, and which of its records
    fields: dict[str, Any]

    def take(self, name: str, kind: Kind) -> Any:
        """The field; None where it is missing and may be. Raises BenchmarkError otherwise."""
        value = self.fields.get(name)
        if not kind.fits(value):
            shown = json.dumps(value)[:_SHOWN_CHARS]
            raise BenchmarkError(f"{self.where}: {name} must be {kind.says}, got {shown}")
        return value

    def parts(self, name: str) -> "list[Record]":
        """The objects of a list, which may be missing."""
        values = self.take(name, OBJECTS.or_none()) or []
        return [
            Record(f"{self.where}, {name}[{index}]", value) for index, value in enumerate(values)
        ]


def read_records(options: Options, keys: tuple[str, ...]) -> Iterator[Record]:
    """The objects of a JSON array, or of a file with one a line."""
    path = Path(options.dataset_path).expanduser()
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
        if text.lstrip().startswith("["):
            values: list[Any] = json.loads(text)
        else:
            values = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise BenchmarkError(f"--dataset-path {path} cannot be read: {error}") from error
    for number, value in enumerate(values, 1):
        where = f"--dataset-path {path}: record {number}"
        missing = [key for key in keys if not isinstance(value, dict) or key not in value]
        if missing or not isinstance(value, dict):
            raise BenchmarkError(
                f"{where} is no {options.dataset_name} record"
                + (f", it lacks {', '.join(missing)}" if missing else "")
            )
        yield Record(where, value)
