"""Ten thousand random operations beside a model that is a set of pages."""

import random

import pytest
import torch

from sglang.srt.mem_cache.allocator import BaseTokenToKVPoolAllocator

NUM_PAGES = 60
NUM_OPERATIONS = 10_000


class PagesModel:
    """Free pages, and the slots of every request, token by token."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.free = set(range(1, NUM_PAGES + 1))
        self.requests: list[list[int]] = []

    def pages_for(self, old_len: int, new_len: int) -> int:
        return -(-new_len // self.page_size) + -old_len // self.page_size

    def grow(self, slots: list[int], new: list[int]) -> None:
        """Checks that each token lies behind the one before it, or begins a page that was free."""
        for slot in new:
            page, offset = divmod(slot, self.page_size)
            assert offset == len(slots) % self.page_size
            if offset:
                assert slot == slots[-1] + 1
            else:
                self.free.remove(page)  # KeyError: the page was somebody else's
            slots.append(slot)

    def drop(self, request: int) -> list[int]:
        slots = self.requests.pop(request)
        self.free |= {slot // self.page_size for slot in slots}
        return slots


class Machine:
    """The allocator and its model, side by side."""

    def __init__(self, page_size: int, seed: int) -> None:
        size = NUM_PAGES * page_size
        self.random = random.Random(seed)
        self.model = PagesModel(page_size)
        self.allocator = BaseTokenToKVPoolAllocator(size, page_size, torch.float32, "cpu", None)
        self.page_size = page_size

    def step(self) -> None:
        operations = (self.begin, self.extend, self.decode, self.decode, self.free, self.undo)
        self.random.choice(operations)()
        assert self.allocator.available_size() == len(self.model.free) * self.page_size
        if self.random.random() < 0.05:
            self.allocator.merge_and_sort_free()
            assert self.allocator.free_pages.tolist() == sorted(self.model.free)

    def begin(self) -> None:
        """A new request, by `alloc`: whole pages, the lowest ones."""
        count = self.random.randint(1, 6)
        lowest = sorted(self.model.free)[:count]
        slots = self.allocator.alloc(count * self.page_size)
        assert (slots is None) == (len(lowest) < count)
        if slots is None:
            return
        self.model.requests.append([])
        self.model.grow(self.model.requests[-1], slots.tolist())
        assert [slot // self.page_size for slot in slots.tolist()[:: self.page_size]] == lowest

    def extend(self) -> None:
        """Some requests grow, and new ones come, in one call."""
        chosen = self._some()
        chosen += [[] for _ in range(self.random.randint(0, 2))]
        news = [self.random.randint(0, 3 * self.page_size) for _ in chosen]
        olds = [len(slots) for slots in chosen]
        ends = [old + new for old, new in zip(olds, news, strict=True)]
        last = [slots[-1] if slots else -1 for slots in chosen]
        needed = sum(map(self.model.pages_for, olds, ends))
        slots = self.allocator.alloc_extend(olds, ends, last)
        assert (slots is None) == (needed > len(self.model.free))
        if slots is None:
            return
        for own, new in zip(chosen, torch.split(slots, news), strict=True):
            if not own and len(new):
                self.model.requests.append(own)
            self.model.grow(own, new.tolist())

    def decode(self) -> None:
        chosen = [slots for slots in self._some() if slots]
        if not chosen:
            return
        ends = [len(slots) + 1 for slots in chosen]
        needed = sum(self.model.pages_for(end - 1, end) for end in ends)
        last = torch.tensor([slots[-1] for slots in chosen], dtype=torch.int32)
        new = self.allocator.alloc_decode(ends, last)
        assert (new is None) == (needed > len(self.model.free))
        for own, slot in zip(chosen, [] if new is None else new.tolist(), strict=new is not None):
            self.model.grow(own, [slot])

    def free(self) -> None:
        """One request, or several in a group, piece by piece."""
        count = min(self.random.randint(0, 3), len(self.model.requests))
        if count > 1:
            self.allocator.free_group_begin()
        for _ in range(count):
            slots = torch.tensor(self.model.drop(self.random.randrange(len(self.model.requests))))
            if count > 1:
                cut = self.random.randint(0, len(slots))
                self.allocator.free(slots[:cut])
                self.allocator.free(slots[cut:])
            else:
                self.allocator.free(slots)
        if count > 1:
            self.allocator.free_group_end()

    def undo(self) -> None:
        """What happens between backup and restore has not happened."""
        state = self.allocator.backup_state()
        for _ in range(self.random.randint(0, 3)):
            self.allocator.alloc(self.random.randint(0, 5) * self.page_size)
        self.allocator.restore_state(state)

    def _some(self) -> list[list[int]]:
        count = self.random.randint(0, min(4, len(self.model.requests)))
        return self.random.sample(self.model.requests, count)


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_allocator_equals_a_set_of_pages(page_size: int) -> None:
    machine = Machine(page_size, seed=page_size)
    for _ in range(NUM_OPERATIONS):
        machine.step()
    while machine.model.requests:
        machine.free()
    assert machine.allocator.available_size() == machine.allocator.size
