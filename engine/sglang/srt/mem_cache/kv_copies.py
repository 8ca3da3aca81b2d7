"""Copies between the device and the host, decided in one thread and made in another."""

import time
from collections import deque
from collections.abc import Callable

import torch

from sglang.srt.mem_cache.memory_pool_host import HostKVPool

Done = Callable[[], None]


class KvCopies:
    """A queue of copies. The host pages of a copy are pinned until `settle` finds it done."""

    def __init__(self, pool: HostKVPool) -> None:
        self._pool = pool
        self._waiting: list[tuple[Callable[[], None], torch.Tensor]] = []
        self._done: deque[tuple[torch.Tensor, float | None]] = deque()

    def to_host(
        self,
        device_slots: torch.Tensor,
        host_slots: torch.Tensor,
        then: Callable[[Done], None] | None = None,
    ) -> None:
        """`then` goes on with the host's pages, in any thread, and calls `done` at the end."""
        pool, pages, finished = self._pool, self._pool.pages_of(host_slots), self._done
        device_pages = pool.pages_of(device_slots)
        pool.pin(pages)

        def done() -> None:
            finished.append((pages, None))

        def copy() -> None:
            pool.copy_from_device(device_pages, pages)
            if then is None:
                done()
            else:
                then(done)

        self._waiting.append((copy, pages))

    def to_device(self, host_slots: torch.Tensor, device_slots: torch.Tensor) -> None:
        pool, pages, finished = self._pool, self._pool.pages_of(host_slots), self._done
        device_pages = pool.pages_of(device_slots)
        pool.pin(pages)

        def copy() -> None:
            start = time.perf_counter()
            pool.copy_to_device(pages, device_pages)
            finished.append((pages, time.perf_counter() - start))

        self._waiting.append((copy, pages))

    def take(self) -> list[Callable[[], None]]:
        """What waits, in order; whoever takes it runs it before the next pass."""
        copies, self._waiting = self._waiting, []
        return [copy for copy, _ in copies]

    def drop(self) -> None:
        """What waits is not made: both ends are forgotten."""
        for _, pages in self._waiting:
            self._pool.unpin(pages)
        self._waiting = []

    def settle(self) -> list[float]:
        """Unpins what is done. Returns how long each load took, in seconds."""
        seconds = []
        while self._done:
            pages, elapsed = self._done.popleft()
            self._pool.unpin(pages)
            if elapsed is not None:
                seconds.append(elapsed)
        return seconds
