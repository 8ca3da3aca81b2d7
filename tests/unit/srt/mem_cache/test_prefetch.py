"""What storage has of a request comes to the host, for as long as the rules let it wait."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from sglang.srt.environ import envs
from sglang.srt.extension_points import HICACHE_STORAGE_BACKENDS
from sglang.srt.mem_cache.hicache_controller import BackgroundThread, Prefetch, PrefetchRules
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage
from sglang.srt.mem_cache.radix_key import RadixKey
from tests.unit.srt.mem_cache.tiers import Tiers

A = list(range(1, 65))


class DictStorage(HiCacheStorage):
    """Pages in memory that the test can look at, shared by all that name it."""

    pages: dict[str, bytes] = {}
    calls: list[tuple[str, int]] = []
    broken = False

    def read(self, key: str) -> Any:
        if self.broken:
            raise OSError("the disk is gone")
        return self.pages.get(key)

    def write(self, key: str, value: torch.Tensor) -> Any:
        self.pages[key] = value.numpy().tobytes()

    def batch_get_v1(self, keys, host_indices, extra_info=None):  # type: ignore[no-untyped-def]
        self.calls.append(("get", len(keys)))
        return super().batch_get_v1(keys, host_indices, extra_info)


@pytest.fixture(autouse=True)
def storage() -> Any:
    DictStorage.pages, DictStorage.calls, DictStorage.broken = {}, [], False
    HICACHE_STORAGE_BACKENDS.register("dict", DictStorage, source="test")
    yield DictStorage
    del HICACHE_STORAGE_BACKENDS["dict"]


def tiers_with(threshold: int = 16, **changes: object) -> Tiers:
    config = f'{{"prefetch_threshold": {threshold}}}'
    changes = {"page_size": 4, "pool": 128, **changes}
    return Tiers(  # type: ignore[arg-type]
        hicache_storage_backend="dict",
        hicache_storage_backend_extra_config=config,
        **changes,
    )


def stored(ids: list[int] = A) -> None:
    tiers = tiers_with()
    tiers.compute(ids)
    tiers.storage()
    tiers.check()


def reader(tiers: Tiers) -> Any:
    return tiers.threads[0]


def test_what_is_stored_is_found_by_another_cache() -> None:
    stored()
    tiers = tiers_with()
    tiers.cache.begin_prefetch("r", RadixKey(A))
    assert tiers.cache.is_prefetching("r")
    reader(tiers).run()  # storage says how much it has
    assert tiers.cache.is_prefetching("r")
    tiers.check()
    reader(tiers).run()  # and reads it
    assert not tiers.cache.is_prefetching("r")
    assert tiers.on_host(A) == 64
    assert tiers.cache.end_prefetch("r") == 64
    assert tiers.load(A) == 64
    tiers.check()
    tiers.storage()
    assert len(DictStorage.pages) == 16


def test_only_what_the_tree_lacks_is_asked_for() -> None:
    stored()
    tiers = tiers_with()
    tiers.compute(A[:32])
    tiers.cache.begin_prefetch("r", RadixKey(A))
    for _ in range(2):
        assert tiers.cache.is_prefetching("r")
        reader(tiers).run()
    assert not tiers.cache.is_prefetching("r")
    assert tiers.cache.end_prefetch("r") == 32
    assert (tiers.on_device(A), tiers.on_host(A)) == (32, 32)
    tiers.check()


@pytest.mark.parametrize("threshold,asks", [(64, True), (65, False)])
def test_short_rests_are_not_asked_for(threshold: int, asks: bool) -> None:
    stored()
    tiers = tiers_with(threshold)
    tiers.cache.begin_prefetch("r", RadixKey(A))
    assert tiers.cache.is_prefetching("r") is asks


def test_too_little_in_storage_takes_no_room() -> None:
    stored(A[:12])
    tiers = tiers_with()
    tiers.cache.begin_prefetch("r", RadixKey(A))
    reader(tiers).run()
    assert not tiers.cache.is_prefetching("r")
    assert tiers.cache.host_pool.available_size() == tiers.cache.host_pool.size
    assert DictStorage.calls == []


def test_a_namespace_sees_its_own_pages_only() -> None:
    stored()
    tiers = tiers_with()
    tiers.cache.begin_prefetch("r", RadixKey(A, "other"))
    reader(tiers).run()
    assert not tiers.cache.is_prefetching("r")


def test_a_prefix_that_went_meanwhile_makes_the_rest_worthless() -> None:
    stored()
    tiers = tiers_with(hicache_ratio=1.0)
    tiers.compute(A[:32])
    tiers.cache.begin_prefetch("r", RadixKey(A))
    reader(tiers).run()
    assert tiers.cache.is_prefetching("r")
    tiers.storage()
    tiers.cache.evict(1000)
    tiers.cache.check_hicache_events()
    tiers.cache.evict_host(1000)
    assert not tiers.cache.is_prefetching("r")
    assert tiers.cache.end_prefetch("r") == 0
    tiers.check()


def test_an_aborted_request_gives_its_room_back_once_the_reader_lets_go() -> None:
    stored()
    tiers = tiers_with()
    tiers.cache.begin_prefetch("r", RadixKey(A))
    reader(tiers).run()
    tiers.cache.is_prefetching("r")  # the room is taken, the read waits
    assert tiers.cache.host_pool.available_size() == tiers.cache.host_pool.size - 64
    tiers.cache.end_prefetch("r")
    tiers.check()
    assert tiers.cache.host_pool.available_size() == tiers.cache.host_pool.size - 64
    reader(tiers).run()
    tiers.check()
    assert tiers.cache.host_pool.available_size() == tiers.cache.host_pool.size
    assert DictStorage.calls == []


def test_a_broken_backend_is_a_miss(caplog: pytest.LogCaptureFixture) -> None:
    stored()
    DictStorage.broken = True
    tiers = tiers_with()
    tiers.cache.begin_prefetch("r", RadixKey(A))
    with pytest.raises(OSError):
        reader(tiers).run()
    assert not tiers.cache.is_prefetching("r")
    tiers.check()


def test_a_background_thread_outlives_what_fails(caplog: pytest.LogCaptureFixture) -> None:
    thread, done = BackgroundThread("test"), []

    def fail() -> None:
        raise OSError("the disk is gone")

    thread.submit(fail)
    thread.submit(lambda: done.append(1))
    assert thread.stop(10)
    assert done == [1]
    assert "what it was asked for is a miss" in caplog.text


def test_more_than_the_host_holds_is_not_on_its_way_at_once() -> None:
    tiers = tiers_with(pool=64, hicache_ratio=1.0)
    tiers.cache.begin_prefetch("a", RadixKey(A))
    tiers.cache.begin_prefetch("b", RadixKey([99, *A]))
    assert tiers.cache.is_prefetching("a")
    assert not tiers.cache.is_prefetching("b")


def test_reads_go_in_batches_and_stop_between_them() -> None:
    ids = [k % 90 for k in range(4 * 300)]
    stored_tiers = tiers_with(pool=4 * 300)
    stored_tiers.compute(ids)
    stored_tiers.storage()
    tiers = tiers_with(pool=4 * 300)
    tiers.cache.begin_prefetch("r", RadixKey(ids))
    reader(tiers).run()
    tiers.cache.is_prefetching("r")
    reader(tiers).run()
    assert not tiers.cache.is_prefetching("r")
    assert DictStorage.calls == [("get", 128), ("get", 128), ("get", 44)]
    tiers.check()


# ------------------------------------------------------------------ how long a request waits


def op(num_tokens: int, ended: bool = False) -> Prefetch:
    return Prefetch("r", None, RadixKey([0] * num_tokens), 0, [], 0.0, ended=ended)  # type: ignore[arg-type]


def test_rules_have_the_documented_numbers() -> None:
    rules = PrefetchRules()
    assert (rules.policy, rules.threshold) == ("timeout", 256)
    assert rules.max_seconds(0) == 2.0
    assert rules.max_seconds(10 * 1024) == pytest.approx(3.0)
    assert rules.max_seconds(1 << 30) == 30.0
    given = PrefetchRules.of(
        "timeout", {"prefetch_timeout_base": 1, "prefetch_timeout_per_ki_token": 0.5}
    )
    assert given.max_seconds(2048) == 2.0


def test_each_policy_lets_go_when_it_should() -> None:
    best_effort, complete, timeout = map(PrefetchRules, ("best_effort", "wait_complete", "timeout"))
    assert best_effort.may_stop(op(1024), now=0.0)
    assert not complete.may_stop(op(1024), now=1e9)
    assert complete.may_stop(op(1024, ended=True), now=0.0)
    assert not timeout.may_stop(op(1024), now=2.0)
    assert timeout.may_stop(op(1024), now=2.2)


@pytest.mark.parametrize("value", ["x", -1, True, None])
def test_bad_numbers_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="prefetch_timeout_base must be a number"):
        PrefetchRules.of("timeout", {"prefetch_timeout_base": value})


def test_a_timeout_takes_what_has_come() -> None:
    stored()
    tiers = tiers_with(hicache_storage_prefetch_policy="timeout")
    tiers.cache.begin_prefetch("r", RadixKey(A))
    reader(tiers).run()
    assert tiers.cache.is_prefetching("r")
    tiers.now += 3.0
    assert not tiers.cache.is_prefetching("r")
    reader(tiers).run()
    tiers.check()
    assert tiers.on_host(A) == 0


def test_best_effort_takes_more_while_its_request_waits_for_room() -> None:
    stored()
    tiers = tiers_with(hicache_storage_prefetch_policy="best_effort")
    tiers.cache.begin_prefetch("r", RadixKey(A))
    assert not tiers.cache.is_prefetching("r")
    reader(tiers).run()
    assert not tiers.cache.is_prefetching("r")
    reader(tiers).run()
    assert not tiers.cache.is_prefetching("r")
    assert tiers.on_host(A) == 64
    tiers.check()


def test_what_storage_does_not_answer_is_bounded() -> None:
    tiers = tiers_with(hicache_storage_prefetch_policy="timeout")
    for number in range(100):
        tiers.cache.begin_prefetch(f"r{number}", RadixKey([number, *A]))
        tiers.cache.end_prefetch(f"r{number}")  # its client has gone
        tiers.cache.check_hicache_events()
    assert len(reader(tiers).tasks) == tiers.cache.host_pool.size // 64
    reader(tiers).run()
    tiers.cache.check_hicache_events()
    tiers.cache.begin_prefetch("r", RadixKey(A))
    assert tiers.cache.is_prefetching("r")
    tiers.check()


# ------------------------------------------------------------------ writing


def test_what_waits_to_be_written_is_bounded_and_stays_on_the_host() -> None:
    tiers = tiers_with(pool=64, hicache_ratio=1.0)  # 16 pages, half of which may wait
    tiers.compute(A[:20])
    tiers.compute([70, *A[:19]])
    tiers.copy()
    assert tiers.cache.controller is not None
    assert tiers.cache.controller.num_pending_pages == 8
    assert tiers.cache.controller.counts.num_not_stored == 2
    tiers.cache.check_hicache_events()
    assert tiers.cache.evict_host(1000) == 0
    tiers.storage()
    tiers.cache.check_hicache_events()
    assert tiers.cache.evict_host(1000) == 40
    assert len(DictStorage.pages) == 8
    tiers.check()


def test_detaching_writes_what_waits() -> None:
    tiers = tiers_with()
    tiers.compute(A)
    tiers.copy()
    assert DictStorage.pages == {}
    assert tiers.cache.detach_storage_backend()[0]
    assert len(DictStorage.pages) == 16
    tiers.check()
    tiers.compute([99, *A])
    tiers.check()
    assert len(DictStorage.pages) == 16


# ------------------------------------------------------------------ random operations


def _work(tiers: Tiers, key: RadixKey, block: int, rng: random.Random) -> None:
    match rng.randrange(5):
        case 0 | 1:
            for _ in range(3):  # enough hits for every policy
                tiers.compute(key.token_ids, key.extra_key)
        case 2:
            tiers.load(key.token_ids, key.extra_key)
        case 3:
            tiers.cache.evict(rng.randrange(8 * block))
        case _ if rng.random() < 0.2:
            tiers.cache.evict_host(rng.randrange(6 * block))


def _store(tiers: Tiers, key: RadixKey, block: int, rng: random.Random) -> None:
    rid = f"r{rng.randrange(4)}"
    if rid not in tiers.waiting:
        tiers.waiting.add(rid)
        tiers.cache.begin_prefetch(rid, key)
    elif not tiers.cache.is_prefetching(rid) and rng.random() < 0.2 or rng.random() < 0.03:
        tiers.waiting.discard(rid)
        tiers.cache.end_prefetch(rid)


def _go_on(tiers: Tiers, key: RadixKey, block: int, rng: random.Random) -> None:
    match rng.randrange(10):
        case 0 | 1 | 2:
            tiers.decide()
            tiers.run_forward(rng.randrange(6))
        case 9 if rng.random() < 0.1:
            tiers.decide()
            tiers.cache.reset()
            tiers.allocator.clear()
        case _:
            thread = rng.choice(tiers.threads)
            if thread.tasks:
                thread.tasks.pop(0)()


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("policy", ["write_through", "write_through_selective", "write_back"])
def test_threads_in_any_order_never_mix_pages(page_size: int, policy: str) -> None:
    """Decisions run ahead of copies and passes, storage runs beside both."""
    rng = random.Random(f"{page_size} {policy}")
    block = {1: 5, 4: 8, 16: 16}[page_size]
    tiers = tiers_with(
        threshold=1,
        pool=10 * block,
        page_size=page_size,
        hicache_ratio=1.5,
        hicache_write_policy=policy,
        hicache_storage_prefetch_policy=rng.choice(["best_effort", "wait_complete"]),
        is_late=True,
    )
    for step in range(2000):
        blocks = [rng.randrange(3) for _ in range(rng.randrange(1, 7))]
        ids = [each * block + k for each in blocks for k in range(block)]
        key = RadixKey(ids, rng.choice([None, None, "k"]))
        rng.choice([_work, _store, _store, _go_on])(tiers, key, block, rng)
        if step % 20 == 0:
            tiers.check()
    counters = tiers.cache.counters
    assert counters.num_prefetched_tokens > 0 and counters.num_loaded_back_tokens > 0
    tiers.cache.close()
    tiers.check()


def test_the_file_backend_survives_a_restart(tmp_path: Path) -> None:
    with envs.SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR.override(tmp_path):
        for run in range(2):
            tiers = Tiers(
                pool=64,
                page_size=4,
                fingerprint="weights",
                hicache_storage_backend="file",
                hicache_storage_backend_extra_config='{"prefetch_threshold": 4}',
            )
            tiers.cache.begin_prefetch("r", RadixKey(A))
            for _ in range(2):
                reader(tiers).run()
                tiers.cache.is_prefetching("r")
            assert tiers.cache.end_prefetch("r") == (64 if run else 0)
            tiers.compute(A)
            tiers.storage()
            tiers.check()
