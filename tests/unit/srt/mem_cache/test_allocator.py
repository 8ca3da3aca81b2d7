"""Slots are handed out in whole pages, lowest first, and never twice."""

import pytest
import torch

from sglang.srt.mem_cache.allocator import (
    BaseTokenToKVPoolAllocator,
    PagedTokenToKVPoolAllocator,
    TokenToKVPoolAllocator,
)


def tokens(size: int = 16) -> TokenToKVPoolAllocator:
    return TokenToKVPoolAllocator(size, torch.float32, "cpu", None)


def pages(size: int = 64, page_size: int = 4) -> PagedTokenToKVPoolAllocator:
    return PagedTokenToKVPoolAllocator(size, page_size, torch.float32, "cpu", None)


def taken(allocator: BaseTokenToKVPoolAllocator, count: int) -> list[int]:
    slots = allocator.alloc(count)
    assert slots is not None
    return slots.tolist()


def test_slot_zero_is_never_handed_out() -> None:
    assert taken(tokens(), 16) == list(range(1, 17))


def test_page_zero_is_never_handed_out() -> None:
    assert taken(pages(), 64) == list(range(4, 68))


def test_size_is_rounded_down_to_pages() -> None:
    assert pages(67).available_size() == 64


def test_pool_below_one_page_raises() -> None:
    with pytest.raises(ValueError, match="at least one page"):
        pages(3)


def test_too_large_a_wish_changes_nothing() -> None:
    allocator = tokens()
    assert allocator.alloc(17) is None
    assert allocator.available_size() == 16


def test_freed_slots_come_again_lowest_first_and_contiguous() -> None:
    allocator = tokens()
    slots = torch.tensor(taken(allocator, 16))
    allocator.free(slots[8:12])
    allocator.free(slots[2:4])
    assert taken(allocator, 3) == [3, 4, 9]


def test_freeing_one_slot_of_a_page_frees_the_page() -> None:
    allocator = pages()
    taken(allocator, 64)
    allocator.free(torch.tensor([9, 10, 21]))
    assert allocator.available_size() == 8
    assert taken(allocator, 8) == [8, 9, 10, 11, 20, 21, 22, 23]


def test_free_group_joins_pieces_of_a_page() -> None:
    allocator = pages()
    taken(allocator, 64)
    allocator.free_group_begin()
    allocator.free(torch.tensor([8, 9]))
    allocator.free(torch.tensor([10]))
    assert allocator.available_size() == 0
    allocator.free_group_end()
    assert allocator.available_size() == 4


def test_slot_freed_twice_is_found() -> None:
    allocator = tokens()
    slots = torch.tensor(taken(allocator, 4))
    allocator.free(slots)
    allocator.free(slots[:1])
    with pytest.raises(RuntimeError, match=r"freed twice: \[1\]"):
        allocator.merge_and_sort_free()


def test_extend_fills_the_last_page_before_it_takes_new_ones() -> None:
    allocator = pages()
    first = allocator.alloc_extend([0, 0], [6, 3], [-1, -1])
    assert first is not None
    assert first.tolist() == [4, 5, 6, 7, 8, 9, 12, 13, 14]
    more = allocator.alloc_extend([6, 3], [13, 4], [9, 14])
    assert more is not None
    assert more.tolist() == [10, 11, 16, 17, 18, 19, 20, 15]


def test_extend_needs_no_page_inside_one() -> None:
    allocator = pages(4)
    assert allocator.alloc_extend([0], [2], [-1]) is not None
    more = allocator.alloc_extend([2], [4], [5])
    assert more is not None and more.tolist() == [6, 7]


def test_extend_plans_in_pages() -> None:
    allocator = pages(8)
    assert allocator.alloc_extend([0, 0, 0], [1, 1, 1], [-1, -1, -1]) is None
    assert allocator.available_size() == 8


def test_decode_takes_a_page_only_at_a_page_start() -> None:
    allocator = pages()
    assert allocator.alloc_extend([0, 0], [4, 2], [-1, -1]) is not None
    slots = allocator.alloc_decode([5, 3], torch.tensor([7, 9]))
    assert slots is not None and slots.tolist() == [12, 10]
    assert allocator.available_size() == 64 - 12


def test_decode_without_a_page_left_changes_nothing() -> None:
    allocator = pages(4)
    assert allocator.alloc_extend([0], [4], [-1]) is not None
    assert allocator.alloc_decode([5], torch.tensor([7])) is None


def test_state_can_be_restored() -> None:
    allocator = tokens()
    slots = torch.tensor(taken(allocator, 4))
    allocator.free(slots[:2])
    state = allocator.backup_state()
    taken(allocator, 10)
    allocator.restore_state(state)
    assert allocator.available_size() == 14
    assert taken(allocator, 3) == [1, 2, 5]


def test_every_form_of_extend_is_one() -> None:
    lists = ([6, 3], [13, 4], [9, 14])
    prefix, seq, last = (torch.tensor(values) for values in lists)
    calls = [
        (lists, {}),
        ((prefix, seq, last, 8), {}),
        ((prefix, prefix, seq, seq, last, 8), {}),
        ((prefix, lists[0], seq, lists[1]), {"last_loc": last, "extend_num_tokens": 8}),
        ((), {"prefix_lens": prefix, "seq_lens_cpu": seq, "last_loc": last}),
    ]
    for args, named in calls:
        allocator = pages()
        assert allocator.alloc_extend([0, 0], [6, 3], [-1, -1]) is not None
        slots = allocator.alloc_extend(*args, **named)
        assert slots is not None
        assert slots.tolist() == [10, 11, 16, 17, 18, 19, 20, 15]


def test_every_form_of_decode_is_one() -> None:
    seq, last = torch.tensor([5, 3]), torch.tensor([7, 9])
    for args in (([5, 3], last), (seq, [5, 3], last), ([5, 3], [7, 9])):
        allocator = pages()
        assert allocator.alloc_extend([0, 0], [4, 2], [-1, -1]) is not None
        slots = allocator.alloc_decode(*args)
        assert slots is not None and slots.tolist() == [12, 10]


def test_calls_without_lengths_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"prefix_lens, seq_lens and last_loc.*\['seq_lens'\]"):
        pages().alloc_extend(seq_lens=[1])
    with pytest.raises(TypeError, match="seq_lens and last_loc"):
        pages().alloc_decode([1])


def test_pool_can_shrink_and_grow_again() -> None:
    allocator = pages(64)
    taken(allocator, 8)
    allocator.resize(23)
    assert (allocator.size, allocator.available_size()) == (20, 12)
    assert taken(allocator, 12)[-1] == 23
    allocator.resize(32)
    assert taken(allocator, 12) == list(range(24, 36))


def test_pool_does_not_shrink_below_what_is_in_use() -> None:
    allocator = pages(64)
    taken(allocator, 24)
    with pytest.raises(ValueError, match="of the 12 pages beyond 16 tokens some are in use"):
        allocator.resize(16)
    assert (allocator.size, allocator.available_size()) == (64, 40)


def test_many_requests_a_token_over_a_page_need_a_page_each() -> None:
    allocator = pages(150 * 2 * 64 - 64, 64)
    full = allocator.alloc_extend([0] * 150, [64] * 150, [-1] * 150)
    assert full is not None
    last = full.view(150, 64)[:, -1]
    assert allocator.available_size() == 149 * 64
    assert allocator.alloc_decode([65] * 150, last) is None
    assert allocator.alloc_decode([65] * 149, last[:149]) is not None
    assert allocator.available_size() == 0
