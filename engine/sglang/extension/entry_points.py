"""Entry points of installed packages: found by group, imported one by one, errors as values."""

import importlib.metadata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FoundEntryPoint:
    """One declaration in the metadata of an installed package; nothing of it is imported yet."""

    name: str
    group: str
    distribution: str | None  # None: metadata without a name
    entry_point: importlib.metadata.EntryPoint

    def __str__(self) -> str:
        return f"{self.name!r} of {self.distribution or 'an unnamed distribution'}"


@dataclass(frozen=True)
class LoadError:
    """An entry point whose import failed. Whoever asked decides how bad that is."""

    found: FoundEntryPoint
    error: Exception

    def __str__(self) -> str:
        return f"{self.found} cannot be loaded: {type(self.error).__name__}: {self.error}"


def find_entry_points(
    group: str,
    source: Callable[..., Iterable[importlib.metadata.EntryPoint]] = (
        importlib.metadata.entry_points
    ),
) -> list[FoundEntryPoint]:
    """All entry points of a group, by name, then distribution. Imports none of them."""
    found = [
        FoundEntryPoint(entry.name, group, _distribution_of(entry), entry)
        for entry in source(group=group)
    ]
    return sorted(found, key=lambda each: (each.name, each.distribution or ""))


def load_entry_point(found: FoundEntryPoint) -> Any | LoadError:
    """The object that the entry point names, or why it cannot be imported."""
    try:
        return found.entry_point.load()
    except Exception as error:  # noqa: BLE001 - importing foreign code may raise anything
        return LoadError(found, error)


def _distribution_of(entry: importlib.metadata.EntryPoint) -> str | None:
    distribution = getattr(entry, "dist", None)
    return None if distribution is None else distribution.name
