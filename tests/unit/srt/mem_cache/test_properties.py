"""Random operations on tree, allocator and requests' memory, against a model that knows no tree.

The model keeps a dictionary: prefix of whole pages → slots of its last page. After every operation
the tree spells exactly that dictionary, every page of the pool has one owner, sizes and locks are
those that follow, and a subscriber of the events knows exactly the pages that are there.
"""

import hashlib
import itertools
import random
from dataclasses import dataclass, field

import pytest
import torch

from sglang.srt.core.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from sglang.srt.core.request import Req
from sglang.srt.core.sampling_params import SamplingParams
from sglang.srt.mem_cache.allocator import BaseTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import CacheInitParams, EvictParams, InsertParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey, TreeNode
from sglang.srt.mem_cache.request_memory import RequestMemory

NUM_PAGES = 40
MAX_REQS = 5
MAX_PAGES = 9  # of a request
NUM_OPERATIONS = 1000
NAMESPACES = (None, None, None, "", "a")

Prefix = tuple[str | None, tuple[int, ...]]


def independent_hash(prefix: Prefix, page_size: int) -> int:
    """The chain of a prefix from its first page, written without the code under test."""
    namespace, ids = prefix
    seed = b"" if namespace is None else b"\x00extra_key\x00" + namespace.encode()
    for start in range(0, len(ids), page_size):
        page = b"".join(i.to_bytes(4, "little") for i in ids[start : start + page_size])
        seed = hashlib.sha256(seed + page).digest()
    return int.from_bytes(seed[:8], "big", signed=True)


@dataclass
class Subscriber:
    """Believes the events alone."""

    pages: dict[int, BlockStored] = field(default_factory=dict)

    def apply(self, events: list) -> None:
        for event in events:
            match event:
                case BlockStored(block_hashes=[this], parent_block_hash=parent):
                    assert this not in self.pages, "stored twice"
                    assert parent is None or parent in self.pages, "stored before its parent"
                    self.pages[this] = event
                case BlockRemoved(block_hashes=[this]):
                    del self.pages[this]
                    orphans = [p for p in self.pages.values() if p.parent_block_hash == this]
                    assert orphans == [], "removed before its children"
                case AllBlocksCleared():
                    self.pages.clear()
                case _:
                    raise AssertionError(event)

    def prefix_of(self, this: int) -> Prefix:
        page = self.pages[this]
        if page.parent_block_hash is None:
            return page.namespace, tuple(page.token_ids)
        namespace, ids = self.prefix_of(page.parent_block_hash)
        assert namespace == page.namespace
        return namespace, (*ids, *page.token_ids)


class World:
    """The memory under test, the model, and what must hold of both."""

    def __init__(self, page_size: int, policy: str, seed: int) -> None:
        self.rng = random.Random(seed)
        self.page_size = page_size
        ticks = itertools.count()
        self.table = ReqToTokenPool(MAX_REQS, (MAX_PAGES + 2) * page_size, "cpu")
        self.allocator = BaseTokenToKVPoolAllocator(
            NUM_PAGES * page_size, page_size, torch.float32, "cpu", None
        )
        self.tree = RadixCache(
            CacheInitParams(
                req_to_token_pool=self.table,
                token_to_kv_pool_allocator=self.allocator,
                page_size=page_size,
                eviction_policy=policy,
                clock=lambda: float(next(ticks)),
                enable_kv_cache_events=True,
            )
        )
        self.memory = RequestMemory(self.tree, self.table, self.allocator)
        self.model: dict[Prefix, list[int]] = {}
        self.attached: list[Req] = []  # a locked prefix, no row
        self.running: list[Req] = []  # a row
        self.locks: list[tuple[TreeNode, Prefix]] = []
        self.retracted: list[Req] = []
        self.subscriber = Subscriber()
        self.ids = itertools.count()

    # ------------------------------------------------------------ the model

    def pages_of(self, namespace: str | None, ids: list[int]) -> list[Prefix]:
        size = self.page_size
        return [(namespace, tuple(ids[:end])) for end in range(size, len(ids) + 1, size)]

    def known(self, namespace: str | None, ids: list[int]) -> list[int]:
        """Slots of the longest prefix that the model has."""
        slots: list[int] = []
        for prefix in self.pages_of(namespace, ids):
            if prefix not in self.model:
                break
            slots += self.model[prefix]
        return slots

    def learn(self, namespace: str | None, ids: list[int], slots: list[int]) -> int:
        """Adds what is missing; returns how many tokens were there."""
        there = len(self.known(namespace, ids))
        for i, prefix in enumerate(self.pages_of(namespace, ids)):
            page = slots[i * self.page_size : (i + 1) * self.page_size]
            self.model.setdefault(prefix, page)
        return there

    def locked(self) -> dict[Prefix, int]:
        """How many locks cover each page."""
        counts: dict[Prefix, int] = {}
        of_reqs = [
            (req.extra_key, tuple(req.fill_ids[: req.cache_protected_len]))
            for req in self.attached + self.running
        ]
        for namespace, ids in [prefix for _, prefix in self.locks] + of_reqs:
            for prefix in self.pages_of(namespace, list(ids)):
                counts[prefix] = counts.get(prefix, 0) + 1
        return counts

    def nodes(self) -> list[tuple[TreeNode, Prefix]]:
        """Every node with the prefix that it ends."""
        found, stack = [], [(self.tree.root_node, ())]
        while stack:
            node, ids = stack.pop()
            for child in node.children.values():
                assert child.parent is node
                spelled = (*ids, *child.key.token_ids)
                found.append((child, (child.key.extra_key, spelled)))
                stack.append((child, spelled))
        return found

    # ------------------------------------------------------------ what must hold

    def check(self) -> None:
        nodes, locked = self.nodes(), self.locked()
        self.check_content(nodes)
        self.check_locks(nodes, locked)
        self.check_owners()
        self.subscriber.apply(self.tree.take_events())
        assert set(self.subscriber.pages) == self.expected_hashes()

    def check_content(self, nodes: list[tuple[TreeNode, Prefix]]) -> None:
        spelled: dict[Prefix, list[int]] = {}
        for node, (namespace, ids) in nodes:
            assert node.value is not None and len(node.value) == len(node.key) > 0
            slots, start = node.value.tolist(), len(ids) - len(node.key)
            for end in range(start, len(ids), self.page_size):
                at = end - start
                prefix = namespace, ids[: end + self.page_size]
                spelled[prefix] = slots[at : at + self.page_size]
        assert spelled == self.model

    def check_locks(self, nodes: list[tuple[TreeNode, Prefix]], locked: dict[Prefix, int]) -> None:
        for node, prefix in nodes:
            assert node.lock_ref == locked.get(prefix, 0)
        assert self.tree.protected_size() == self.page_size * len(locked)
        assert self.tree.total_size() == self.page_size * len(self.model)
        assert self.tree.root_node.lock_ref == 1

    def check_owners(self) -> None:
        """Every page of the pool is free, cached, or held by one request."""
        self.allocator.merge_and_sort_free()
        owned = self.allocator.free_pages.tolist()
        size = self.page_size
        for slots in self.model.values():
            assert slots == list(range(slots[0], slots[0] + size)) and slots[0] % size == 0
            owned.append(slots[0] // size)
        for req in self.running:
            own = self.table.slots(req, req.cache_protected_len, req.kv_committed_len).tolist()
            owned += sorted({slot // size for slot in own})
        assert sorted(owned) == list(range(1, NUM_PAGES + 1))

    def expected_hashes(self) -> set[int]:
        return {independent_hash(prefix, self.page_size) for prefix in self.model}


class Operations(World):
    """What the scheduler and others do, each with what it must answer."""

    def text(self, length: int) -> list[int]:
        """Ids of few kinds in few patterns, so that prefixes are shared and split."""
        ids: list[int] = []
        while len(ids) < length:
            run = self.rng.choice((1, self.page_size, self.page_size))
            ids += [self.rng.randrange(3)] * run
        return ids[:length]

    def length(self) -> int:
        return self.rng.randint(1, MAX_PAGES * self.page_size)

    def namespace(self) -> str | None:
        return self.rng.choice(NAMESPACES)

    def match(self) -> None:
        namespace, ids = self.namespace(), self.text(self.length())
        found = self.tree.match_prefix(RadixKey(ids, namespace))
        assert found.device_indices.tolist() == self.known(namespace, ids)

    def insert(self) -> None:
        """As somebody without a request: own slots, the duplicates go back."""
        namespace, ids = self.namespace(), self.text(self.length())
        ids = ids[: len(ids) // self.page_size * self.page_size]
        slots = self.allocator.alloc(len(ids))
        if slots is None:
            return
        params = InsertParams(
            RadixKey(ids, namespace), slots, self.rng.random() < 0.3, self.rng.randrange(3)
        )
        there = self.learn(namespace, ids, slots.tolist())
        assert self.tree.insert(params).prefix_len == there
        self.allocator.free(slots[:there])

    def lock(self) -> None:
        namespace, ids = self.namespace(), self.text(self.length())
        match = self.tree.match_prefix(RadixKey(ids, namespace))
        length = len(match.device_indices)
        before = self.tree.evictable_size()
        delta = self.tree.inc_lock_ref(match.last_device_node).delta
        assert delta == self.tree.evictable_size() - before <= 0
        self.locks.append((match.last_device_node, (namespace, tuple(ids[:length]))))

    def unlock(self) -> None:
        if self.locks:
            node, _ = self.locks.pop(self.rng.randrange(len(self.locks)))
            assert self.tree.dec_lock_ref(node).delta >= 0

    def evict(self, wanted: int | None = None) -> None:
        """The same victims in the same order as by looking at every leaf each time."""
        if wanted is None:
            wanted = self.rng.randint(0, 6 * self.page_size)
        nodes, locked = dict(self.nodes()), self.locked()
        priority = self.tree.eviction_strategy.get_priority
        freed = 0
        while freed < wanted:
            parents = {node.parent for node in nodes}
            leaves = [n for n in nodes if n not in parents and nodes[n] not in locked]
            if not leaves:
                break
            victim = min(leaves, key=lambda node: (priority(node), node.id))
            namespace, ids = nodes.pop(victim)
            for end in range(len(ids) - len(victim.key), len(ids), self.page_size):
                del self.model[namespace, ids[: end + self.page_size]]
            freed += len(victim.key)
        assert self.tree.evict(EvictParams(wanted)).num_tokens_evicted == freed

    def attach(self) -> None:
        """A new request, or one that was retracted comes back."""
        if self.retracted and self.rng.random() < 0.5:
            req = self.retracted.pop()
        else:
            req = Req(
                f"r{next(self.ids)}", self.text(self.length()), SamplingParams(),
                priority=self.rng.randrange(3), extra_key=self.namespace(),
            )  # fmt: skip
        self.memory.attach_prefix(req)
        assert req.prefix_indices is not None
        assert req.prefix_indices.tolist() == self.known(req.extra_key, req.fill_ids[:-1])
        self.attached.append(req)

    def detach(self) -> None:
        if self.attached:
            self.memory.detach_prefix(self.attached.pop())

    def extend(self) -> None:
        """A chunk or all of a prompt, then it is shared."""
        unfilled = [r for r in self.running if r.kv_committed_len < r.seq_len]
        candidates = unfilled + (self.attached if self.memory.rows_left() else [])
        if not candidates:
            return
        req = self.rng.choice(candidates)
        new = self.rng.randint(1, req.seq_len - req.kv_committed_len)
        if not self.make_room(req, req.kv_committed_len + new):
            return
        self.memory.extend([req], [new])
        if req in self.attached:
            self.attached.remove(req)
            self.running.append(req)
        self.share(req, chunked=req.kv_committed_len < req.seq_len)

    def share(self, req: Req, *, chunked: bool) -> None:
        committed = req.kv_committed_len
        row = self.table.slots(req, 0, committed).tolist()
        ids = req.fill_ids[:committed]
        self.learn(req.extra_key, ids, row)
        self.memory.share_prompt(req, chunked=chunked)
        aligned = committed // self.page_size * self.page_size
        assert req.cache_protected_len == aligned
        shared = self.known(req.extra_key, ids)
        assert self.table.slots(req, 0, committed).tolist() == shared + row[aligned:]

    def decode(self) -> None:
        """The next token of a request whose prompt is there."""
        filled = [r for r in self.running if r.kv_committed_len == r.seq_len]
        longest = (MAX_PAGES + 1) * self.page_size
        filled = [r for r in filled if r.seq_len < longest]
        if filled:
            req = self.rng.choice(filled)
            if self.make_room(req, req.kv_committed_len + 1):
                req.output_ids.append(self.rng.randrange(3))
                self.memory.decode([req])

    def make_room(self, req: Req, length: int) -> bool:
        need = self.memory.new_page_tokens(req.kv_committed_len, length)
        if need > self.memory.room():
            return False
        self.evict(max(need - self.allocator.available_size(), 0))
        return True

    def finish(self) -> None:
        self.end(keep=True)

    def abort(self) -> None:
        self.end(keep=False)

    def retract(self) -> None:
        """It gives all back, and will come again with what it has."""
        if req := self.end(keep=True):
            self.retracted.append(req)

    def end(self, *, keep: bool) -> Req | None:
        if not self.running:
            return None
        req = self.running.pop(self.rng.randrange(len(self.running)))
        if keep:
            committed = req.kv_committed_len
            row = self.table.slots(req, 0, committed).tolist()
            self.learn(req.extra_key, req.fill_ids[:committed], row)
        self.memory.release(req, keep=keep)
        return req

    def clear(self) -> None:
        if not (self.running or self.attached or self.locks):
            self.memory.clear()
            self.model.clear()

    def drain(self) -> None:
        while self.running:
            self.finish()
        while self.attached:
            self.detach()
        while self.locks:
            self.unlock()


WEIGHTS = {
    "match": 3, "insert": 3, "lock": 2, "unlock": 2, "evict": 2, "attach": 4, "detach": 1,
    "extend": 6, "decode": 6, "finish": 2, "abort": 1, "retract": 1, "clear": 1,
}  # fmt: skip
CASES = [
    (page_size, policy)
    for page_size in (1, 4, 16)
    for policy in ("lru", "lfu", "slru", "fifo", "priority")
]
assert len(CASES) * NUM_OPERATIONS >= 10_000


@pytest.mark.parametrize(("page_size", "policy"), CASES)
def test_memory_equals_a_dictionary_of_prefixes(page_size: int, policy: str) -> None:
    world = Operations(page_size, policy, seed=page_size * 1000 + len(policy))
    done = dict.fromkeys(WEIGHTS, 0)
    for number in range(NUM_OPERATIONS):
        (name,) = world.rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
        if number % 100 == 99:  # idle, so that a flush may happen
            world.drain()
        getattr(world, name)()
        world.check()
        done[name] += 1
    assert min(done.values()) > 0
    assert world.tree.counters.num_evicted_tokens > 0
    for this in world.subscriber.pages:
        prefix = world.subscriber.prefix_of(this)
        assert independent_hash(prefix, page_size) == this
        assert prefix in world.model
    world.drain()
    world.evict(NUM_PAGES * page_size)
    world.check()
    assert world.model == {} and world.allocator.available_size() == NUM_PAGES * page_size
