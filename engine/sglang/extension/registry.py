"""The registry behind every named extension point."""

import difflib
import importlib
import logging
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

logger = logging.getLogger(__name__)
T = TypeVar("T")
_RAISE: Any = object()


class UnknownNameError(KeyError, ValueError):
    """Nobody registered the name; the text lists who did."""

    def __str__(self) -> str:
        return str(self.args[0])


def source_of(item: object) -> str:
    """Where an item was defined, as `module:name`; what conflict messages show."""
    module = getattr(item, "__module__", type(item).__module__)
    return f"{module}:{getattr(item, '__qualname__', type(item).__qualname__)}"


@dataclass(frozen=True)
class _Entry:
    source: str
    item: Any
    lazy: bool


class Registry(MutableMapping[str, T], Generic[T]):
    """Names of one kind. A name is taken once; `replace=True` is the only way round, and is logged.

    Only a built-in, declared lazily, may hold a `reserved` name, and nothing replaces it. A lazy
    target is a string `module:attribute`, imported when the name is first asked for, so listing
    names costs nothing.
    """

    def __init__(self, kind: str, *, reserved: frozenset[str] = frozenset()) -> None:
        self.kind = kind
        self._reserved = reserved
        self._entries: dict[str, _Entry] = {}

    def register(self, name: str, item: T, *, source: str, replace: bool = False) -> None:
        self._put(name, _Entry(source, item, lazy=False), replace)

    def register_lazy(self, name: str, target: str, *, replace: bool = False) -> None:
        self._put(name, _Entry(target, target, lazy=True), replace)

    def get(self, name: str, default: Any = _RAISE) -> Any:
        """The item; of an unknown name the default, or without one UnknownNameError."""
        return self[name] if default is _RAISE or name in self._entries else default

    def names(self) -> list[str]:
        return sorted(self._entries)

    def source(self, name: str) -> str:
        """Who registered the name; of a built-in where it is defined."""
        if name not in self._entries:
            raise self.unknown(name)
        return self._entries[name].source

    def unknown(self, name: str) -> UnknownNameError:
        near = difflib.get_close_matches(name, self._entries, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        known = ", ".join(map(repr, self.names())) or "none"
        return UnknownNameError(f"Unknown {self.kind} {name!r}{hint} Registered: {known}.")

    def __getitem__(self, name: str) -> T:
        entry = self._entries.get(name)
        if entry is None:
            raise self.unknown(name)
        if entry.lazy:
            module, _, attribute = entry.item.partition(":")
            item = getattr(importlib.import_module(module), attribute)
            entry = self._entries[name] = _Entry(entry.source, item, lazy=False)
        return cast(T, entry.item)

    def __setitem__(self, name: str, item: T) -> None:
        self.register(name, item, source=source_of(item), replace=True)

    def __delitem__(self, name: str) -> None:
        if name not in self._entries:
            raise self.unknown(name)
        del self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def _put(self, name: str, entry: _Entry, replace: bool) -> None:
        if not name.strip():
            raise ValueError(f"A {self.kind} needs a name that is not blank, got {name!r}.")
        taken = self._entries.get(name)
        if name in self._reserved and (taken is not None or not entry.lazy):
            raise ValueError(f"The {self.kind} name {name!r} is reserved; choose another one.")
        if taken is not None and not replace:
            raise ValueError(
                f"The {self.kind} name {name!r} is already registered by {taken.source}; "
                f"{entry.source} must choose another one."
            )
        if taken is not None:
            logger.warning(
                "%s %r of %s replaces the one of %s.", self.kind, name, entry.source, taken.source
            )
        self._entries[name] = entry
