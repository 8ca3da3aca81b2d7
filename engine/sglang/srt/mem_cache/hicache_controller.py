"""Traffic between host memory and storage, in two background threads."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from sglang.srt.arg_groups.hicache import BEST_EFFORT, PREFETCH_POLICIES, TIMEOUT, WAIT_COMPLETE
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, HiCacheStorageExtraInfo
from sglang.srt.mem_cache.radix_key import RadixKey

logger = logging.getLogger(__name__)

STORAGE_BATCH = 128  # pages of one call to the backend
MAX_PREFETCH_SECONDS = 30.0
STOP_SECONDS = 10.0  # that a backend may take for the call that it is in
Task = Callable[[], None]


@dataclass(frozen=True)
class PrefetchRules:
    """When storage is asked, and how long a request waits for it."""

    policy: str = TIMEOUT
    threshold: int = 256  # tokens; fewer are not asked for
    timeout_base: float = 2.0  # seconds
    timeout_per_ki_token: float = 0.1  # seconds per 1024 tokens

    @classmethod
    def of(cls, policy: str, extra_config: Mapping[str, Any]) -> "PrefetchRules":
        """With the numbers that the settings of the backend give. ValueError for a bad one."""
        if policy not in PREFETCH_POLICIES:
            allowed = ", ".join(PREFETCH_POLICIES)
            raise ValueError(
                f"hicache_storage_prefetch_policy must be one of {allowed}; got {policy!r}"
            )

        def number(name: str, default: float) -> float:
            value = extra_config.get(name, default)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise ValueError(f"{name} must be a number, 0 or more; got {value!r}")
            return value

        return cls(
            policy,
            int(number("prefetch_threshold", cls.threshold)),
            number("prefetch_timeout_base", cls.timeout_base),
            number("prefetch_timeout_per_ki_token", cls.timeout_per_ki_token),
        )

    def max_seconds(self, num_tokens: int) -> float:
        wanted = self.timeout_base + self.timeout_per_ki_token * num_tokens / 1024
        return min(wanted, MAX_PREFETCH_SECONDS)

    def may_stop(self, op: "Prefetch", now: float) -> bool:
        """Whether the request may go on with what has come so far."""
        if op.ended or self.policy == BEST_EFFORT:
            return True
        if self.policy == WAIT_COMPLETE:
            return False
        return now - op.started >= self.max_seconds(op.num_tokens)


@dataclass(eq=False)
class Prefetch:
    """The pages that one request lacks, on their way from storage to the host.

    The reader thread writes `num_found`, `num_read` and `ended`; everything else belongs to the
    scheduler's thread.
    """

    rid: str
    controller: "HiCacheController"
    key: RadixKey  # the whole prefix: what the tree had, and what storage is asked for
    start: int  # tokens that the tree had
    hashes: list[str]  # of the pages from there on
    started: float
    prefix_keys: list[str] | None = None
    host_slots: torch.Tensor | None = None  # room for the pages that were found
    num_taken: int = 0  # pages that are in the tree, or were dropped
    num_prefetched: int = 0  # tokens that the tree got
    stopped: bool = False
    num_found: int | None = None  # pages
    num_read: int = 0  # pages
    ended: bool = False

    @property
    def num_tokens(self) -> int:
        return len(self.key) - self.start

    @property
    def is_done(self) -> bool:
        """Whether the reader is through with it."""
        return self.ended and self.num_found is not None

    def num_slots_left(self, page_size: int) -> int:
        """Of its room, what the tree has not got."""
        num_slots = 0 if self.host_slots is None else len(self.host_slots)
        return num_slots - self.num_taken * page_size


class BackgroundThread:
    """Runs tasks one after the other. Nothing that a task raises ends it."""

    def __init__(self, name: str) -> None:
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, task: Task) -> None:
        self._tasks.put(task)

    def stop(self, seconds: float) -> bool:
        """After what was submitted. Whether that has ended in time."""
        self._tasks.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except Exception:
                logger.exception("the storage backend failed; what it was asked for is a miss")


@dataclass
class StorageCounts:
    """What was done, in pages."""

    num_stored: int = 0
    num_not_stored: int = 0  # the backend refused or failed, or too much was waiting already


@dataclass
class HiCacheController:
    """One attached backend. `max_pending_pages` bounds what waits to be written."""

    storage: HiCacheStorage
    page_size: int
    max_pending_pages: int
    make_thread: Callable[[str], Any] = BackgroundThread
    counts: StorageCounts = field(default_factory=StorageCounts)

    def __post_init__(self) -> None:
        self.news = threading.Event()  # set when a prefetch has got further
        self._reader = self.make_thread("hicache-read")
        self._writer = self.make_thread("hicache-write")
        self._num_pending = 0
        self._lock = threading.Lock()  # of `_num_pending`, `_closing` and `counts`
        self._closing = False

    # ---------------------------------------------------------------- reading

    def query(self, op: Prefetch) -> None:
        """Finds out how many leading pages storage has."""
        self._reader.submit(lambda: self._query(op))

    def read(self, op: Prefetch) -> None:
        """Fills `op.host_slots`."""
        self._reader.submit(lambda: self._read(op))

    def _query(self, op: Prefetch) -> None:
        found = 0
        try:
            for start in range(0, len(op.hashes), STORAGE_BATCH):
                keys = op.hashes[start : start + STORAGE_BATCH]
                if op.stopped or self._closing:
                    break
                num_there = self.storage.batch_exists(keys, self._info(op, start))
                found += num_there
                if num_there < len(keys):
                    break
        finally:
            op.num_found = found
            self.news.set()

    def _read(self, op: Prefetch) -> None:
        assert op.host_slots is not None and op.num_found is not None
        try:
            for start in range(0, op.num_found, STORAGE_BATCH):
                keys = op.hashes[start : min(start + STORAGE_BATCH, op.num_found)]
                if op.stopped or self._closing:
                    break
                first, last = start * self.page_size, (start + len(keys)) * self.page_size
                results = self.storage.batch_get_v1(
                    keys, op.host_slots[first:last], self._info(op, start)
                )
                num_good = next((i for i, good in enumerate(results) if not good), len(results))
                op.num_read += num_good
                self.news.set()
                if num_good < len(keys):
                    break
        finally:
            op.ended = True
            self.news.set()

    def _info(self, op: Prefetch, start: int) -> HiCacheStorageExtraInfo:
        return HiCacheStorageExtraInfo(prefix_keys=(op.prefix_keys or []) + op.hashes[:start])

    # ---------------------------------------------------------------- writing

    def write(self, keys: list[str], host_slots: torch.Tensor, done: Task) -> None:
        """Stores as many of the leading pages as may wait; calls `done` in any case."""
        with self._lock:
            room = 0 if self._closing else self.max_pending_pages - self._num_pending
            welcome = keys[: max(room, 0)]
            self._num_pending += len(welcome)
            self.counts.num_not_stored += len(keys) - len(welcome)
        if welcome:
            self._writer.submit(lambda: self._write(welcome, host_slots, done))
        else:
            done()

    def _write(self, keys: list[str], host_slots: torch.Tensor, done: Task) -> None:
        num_stored = 0
        try:
            for start in range(0, len(keys), STORAGE_BATCH):
                batch = keys[start : start + STORAGE_BATCH]
                first, last = start * self.page_size, (start + len(batch)) * self.page_size
                info = HiCacheStorageExtraInfo(prefix_keys=keys[:start])
                num_stored += sum(self.storage.batch_set_v1(batch, host_slots[first:last], info))
        finally:
            with self._lock:
                self._num_pending -= len(keys)
                self.counts.num_stored += num_stored
                self.counts.num_not_stored += len(keys) - num_stored
            done()

    @property
    def num_pending_pages(self) -> int:
        return self._num_pending

    # ---------------------------------------------------------------- end

    def close(self, seconds: float = STOP_SECONDS) -> bool:
        """No new work; what waits to be written is written. False if the backend is stuck."""
        end = time.monotonic() + seconds
        with self._lock:
            self._closing = True
        is_stopped = self._reader.stop(seconds)
        is_stopped &= self._writer.stop(max(end - time.monotonic(), 0))
        if is_stopped:
            self.storage.detach()
        return bool(is_stopped)
