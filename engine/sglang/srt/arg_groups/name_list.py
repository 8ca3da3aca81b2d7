"""Names that an option takes: those of a registry, and those that are announced by hand."""

from collections.abc import Iterable, MutableSequence
from typing import Any


class NameList(MutableSequence[str]):
    """A list whose first items are the names of a registry, whatever is registered by then.

    Names are appended for what is registered later, or in another process.
    """

    def __init__(self, registered: Iterable[str]) -> None:
        self._registered = registered
        self._announced: list[str] = []

    def insert(self, index: int, value: str) -> None:
        """At the end, wherever it is wanted; a name that is there stays where it is."""
        if value not in self:
            self._announced.append(value)

    def __len__(self) -> int:
        return len(self._names())

    def __getitem__(self, index: Any) -> Any:
        return self._names()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError(_FIXED)

    def __delitem__(self, index: Any) -> None:
        """Only of announced names; the registry has its own way."""
        names = self._names()[index]
        for name in [names] if isinstance(names, str) else names:
            if name not in self._announced:
                raise TypeError(_FIXED)
            self._announced.remove(name)

    def __eq__(self, other: object) -> bool:
        return self._names() == other

    def __repr__(self) -> str:
        return repr(self._names())

    def _names(self) -> list[str]:
        registered = sorted(self._registered)
        return registered + [name for name in self._announced if name not in registered]


_FIXED = "names of a registry are changed by registering; others can be appended and removed"
