"""What a program has produced so far: one thread writes it, any number wait for it."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any


class Results:
    """Variables, their meta information, and how far the program is."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.meta: dict[str, Any] = {}
        self.error: BaseException | None = None
        self.finished = False
        self._changed = threading.Condition()
        self._expected: Counter[str] = Counter()  # announced and not yet set
        self._partial: dict[str, str] = {}  # answers that are still streaming
        self._failed: set[str] = set()

    def expect(self, names: Iterable[str]) -> None:
        """Announces variables; reading one waits from now on."""
        with self._changed:
            for name in names:
                if self.error is None:
                    self._expected[name] += 1
                else:
                    self._failed.add(name)

    def set(self, name: str, value: Any, meta: Any = None) -> None:
        with self._changed:
            self.values[name] = value
            if meta is not None:
                self.meta[name] = meta
            self._partial.pop(name, None)
            self._failed.discard(name)
            if self._expected[name] > 0:
                self._expected[name] -= 1
            self._changed.notify_all()

    def grow(self, name: str, piece: str, meta: Any) -> None:
        """A piece of an answer that streams."""
        with self._changed:
            self._partial[name] = self._partial.get(name, "") + piece
            self.meta[name] = meta
            self._changed.notify_all()

    def announce(self) -> None:
        """Something that readers look at has changed."""
        with self._changed:
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Nothing more will come; who waits gets the first error."""
        with self._changed:
            self.error = self.error or error
            self._failed.update(+self._expected)
            self._expected.clear()
            self._changed.notify_all()

    def finish(self) -> None:
        with self._changed:
            self.finished = True
            self._expected.clear()
            self._changed.notify_all()

    def wait_finished(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.finished)

    def get(self, name: str) -> Any:
        """Waits for the variable. Raises the error that kept it from coming."""
        with self._changed:
            self._changed.wait_for(lambda: not self._expected[name])
            lost = name in self._failed or name not in self.values
            if lost and self.error is not None:
                raise self.error
            if lost:
                known = ", ".join(self.values) or "none yet"
                raise KeyError(f"no variable {name!r}; there are: {known}")
            return self.values[name]

    def has(self, name: str) -> bool:
        with self._changed:
            return name in self.values or self._expected[name] > 0 or name in self._failed

    def is_expected(self, name: str) -> bool:
        with self._changed:
            return self._expected[name] > 0

    def pieces_of(self, name: str) -> Iterator[str]:
        """The variable's text as it comes. Ends when it is whole, or raises the error."""

        def is_whole() -> bool:
            return (name in self.values and not self._expected[name]) or self.finished

        def text() -> str:
            value: Any = self._partial.get(name, "")
            if not value and name in self.values and not self._expected[name]:
                value = self.values[name]
            return str(value[0] if isinstance(value, list) else value)

        yield from self.pieces(text, is_whole)
        self.get(name)

    def pieces(self, text: Callable[[], str], is_whole: Callable[[], bool]) -> Iterator[str]:
        """What `text()` gains, as it comes, until it is whole or the program has failed."""
        seen = 0

        def has_news() -> bool:
            return len(text()) > seen or is_whole() or self.error is not None

        while True:
            with self._changed:
                self._changed.wait_for(has_news)
                now = text()
                ended = is_whole() or self.error is not None
            if len(now) > seen:
                yield now[seen:]
                seen = len(now)
            if ended:
                return
