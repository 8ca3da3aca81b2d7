"""A cache of three tiers on a pool of numbers, driven without an engine."""

from types import SimpleNamespace

import torch

from sglang.srt.mem_cache.allocator import BaseTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import CacheInitParams, InsertParams
from sglang.srt.mem_cache.hicache_controller import HiCacheController, Task
from sglang.srt.mem_cache.hiradix_cache import HiRadixCache
from sglang.srt.mem_cache.radix_key import RadixKey
from tests.unit.srt.managers.engine import HashKV, kv_of


class InlineThread:
    """Tasks run when the test says so."""

    def __init__(self, name: str) -> None:
        self.tasks: list[Task] = []

    def submit(self, task: Task) -> None:
        self.tasks.append(task)

    def run(self) -> None:
        while self.tasks:
            self.tasks.pop(0)()

    def stop(self, seconds: float) -> bool:
        self.run()
        return True


def options(**changes: object) -> SimpleNamespace:
    values = {
        "hicache_ratio": 2.0,
        "hicache_size": 0,
        "hicache_write_policy": "write_through",
        "hicache_mem_layout": "page_first",
        "hicache_storage_backend": None,
        "hicache_storage_prefetch_policy": "wait_complete",
        "hicache_storage_backend_extra_config": None,
        "served_model_name": "org/model",
    }
    return SimpleNamespace(**{**values, **changes})


class Tiers:
    """The cache, its pool, and what a scheduler would do with them. Copies run at `copy`."""

    def __init__(
        self,
        *,
        pool: int = 64,
        page_size: int = 1,
        fingerprint: str = "",
        events: bool = False,
        is_late: bool = False,
        **changes: object,
    ) -> None:
        """is_late: passes and copies wait for `run_forward`, as in a loop that plans ahead."""
        self.now = 0.0
        self.is_late, self.forward = is_late, []
        self.waiting: set[str] = set()  # requests that storage was asked for
        self.threads: list[InlineThread] = []
        self.kv = HashKV(pool, page_size)
        self.allocator = BaseTokenToKVPoolAllocator(pool, page_size, torch.int64, "cpu", self.kv)
        self.page_size = page_size
        self.cache = HiRadixCache(
            CacheInitParams(
                token_to_kv_pool_allocator=self.allocator,
                page_size=page_size,
                clock=self.tick,
                enable_kv_cache_events=events,
            ),
            options(**changes),
            fingerprint=fingerprint,
            make_controller=self._controller,
        )

    def tick(self) -> float:
        self.now += 1e-6
        return self.now

    def _controller(self, *args: object) -> HiCacheController:
        def thread(name: str) -> InlineThread:
            self.threads.append(InlineThread(name))
            return self.threads[-1]

        return HiCacheController(*args, make_thread=thread)  # type: ignore[arg-type]

    def compute(self, ids: list[int], extra_key: str | None = None, chunked: bool = False) -> int:
        """As a request that ended: what is not cached is computed. Returns what was cached."""
        key = RadixKey(ids, extra_key)
        length = len(ids) // self.page_size * self.page_size
        match = self.cache.match_prefix(key)
        node, cached = match.last_device_node, match.device_indices
        self.cache.inc_lock_ref(node)
        missing = length - len(cached)
        if missing > self.allocator.available_size():
            self.cache.evict(missing - self.allocator.available_size())
        new = self.allocator.alloc(missing)
        if new is None:
            self.cache.dec_lock_ref(node)
            return -1
        self.decide()
        computed = [kv_of(ids[i], i) for i in range(len(cached), length)]
        numbers = torch.tensor(computed, dtype=torch.int64)
        self.forward.append(lambda: self.kv.values.index_copy_(0, new, numbers))
        if not self.is_late:
            self.run_forward()
        slots = torch.cat([cached, new])
        known = self.cache.insert(InsertParams(key, slots, chunked)).prefix_len
        self.allocator.free(slots[len(cached) : known])
        self.cache.dec_lock_ref(node)
        return len(cached)

    def load(self, ids: list[int], extra_key: str | None = None, quota: int | None = None) -> int:
        """As an admitted request: returns how much came from the host."""
        match = self.cache.match_prefix(RadixKey(ids, extra_key))
        self.cache.inc_lock_ref(match.last_device_node)
        slots = self.cache.load_back(match.best_match_node, quota)
        self.cache.dec_lock_ref(match.last_device_node)
        return 0 if slots is None else len(slots)

    def on_device(self, ids: list[int], extra_key: str | None = None) -> int:
        return len(self.cache.match_prefix(RadixKey(ids, extra_key)).device_indices)

    def on_host(self, ids: list[int], extra_key: str | None = None) -> int:
        return self.cache.match_prefix(RadixKey(ids, extra_key)).host_hit_length

    def decide(self) -> None:
        """What was decided so far comes before what will be."""
        self.forward += self.cache.take_kv_copies()

    def run_forward(self, most: int = 1 << 30) -> None:
        """The forward thread gets further: copies and passes, in order."""
        for _ in range(min(most, len(self.forward))):
            self.forward.pop(0)()

    def copy(self) -> None:
        self.decide()
        self.run_forward()

    def storage(self) -> None:
        """Everything that waits for storage happens."""
        self.copy()
        for thread in self.threads:
            thread.run()

    def check(self) -> None:
        """No page is lost, every number that can be matched is right, the counters are true."""
        self.copy()
        cache = self.cache
        cache.check_integrity()
        free = self.allocator.available_size()
        assert free + cache.evictable_size() + cache.protected_size() == self.allocator.size
        on_device = on_host = 0
        stack = [(cache.root_node, 0, [])]
        while stack:
            node, start, path = stack.pop()
            path = [*path, *node.key.token_ids]
            if node is not cache.root_node:
                assert node.value is not None or node.host_value is not None
                assert node.value is None or not node.parent.evicted
                wanted = [kv_of(token, i) for i, token in enumerate(path)][start:]
                if node.value is not None:
                    on_device += len(node.value)
                    assert self.kv.values[node.value].tolist() == wanted
                if node.host_value is not None:
                    on_host += len(node.host_value)
                    assert host_numbers(cache, node.host_value) == wanted
            stack += [(child, len(path), path) for child in node.children.values()]
        assert on_device == cache.total_size()
        assert on_host == cache.num_host_tokens


def host_numbers(cache: HiRadixCache, slots: torch.Tensor) -> list[int]:
    pool = cache.host_pool
    pages = [pool.get_data_page(slot) for slot in slots[:: pool.page_size].tolist()]
    numbers: list[int] = torch.cat(pages).view(torch.int64).tolist()
    return numbers
