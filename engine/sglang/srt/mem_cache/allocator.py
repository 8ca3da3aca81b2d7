"""Hands out slots of the KV pool, in whole pages, lowest first."""

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from sglang.srt.core.request import Req
    from sglang.srt.mem_cache.memory_pool import KVCache, ReqToTokenPool


class BaseTokenToKVPoolAllocator:
    """Free pages of one KV pool. Sizes are in tokens; page 0 is never handed out.

    Padding tokens write to page 0, so slots run from `page_size` to `size + page_size - 1`. Every
    `alloc…` returns int64 slots, or None and no change when too few pages are free. What was
    allocated is given back in whole pages: freeing one slot of a page frees the page.
    """

    def __init__(
        self,
        size: int,
        page_size: int,
        dtype: torch.dtype,
        device: str,
        kvcache: "KVCache | None",
        need_sort: bool = True,
    ) -> None:
        if page_size < 1 or size < page_size:
            raise ValueError(f"A KV pool needs at least one page: {size=} tokens, {page_size=}.")
        self.num_pages = size // page_size
        self.size = self.num_pages * page_size
        self.page_size = page_size
        self.dtype = dtype
        self.device = device
        self.need_sort = need_sort  # released pages are sorted in, so that answers stay contiguous
        self._kvcache = kvcache
        self.clear()

    def clear(self) -> None:
        """All pages are free; whoever held slots holds them no longer."""
        self.free_pages = torch.arange(1, self.num_pages + 1, dtype=torch.int64, device=self.device)
        self._released: list[torch.Tensor] = []
        self._num_released = 0
        self._group: list[torch.Tensor] | None = None

    def resize(self, size: int) -> None:
        """From now on there are so many tokens, rounded down to pages; no more than the pool has
        room for. ValueError, and no change, if a page that goes is in use.
        """
        num_pages = size // self.page_size
        if num_pages < 1 or (self._kvcache is not None and size > self._kvcache.size):
            most = "" if self._kvcache is None else f" to {self._kvcache.size}"
            raise ValueError(f"a KV pool can have {self.page_size}{most} tokens, not {size}")
        self.merge_and_sort_free()
        kept = self.free_pages[self.free_pages <= num_pages]
        if num_pages < self.num_pages:
            leaving = self.num_pages - num_pages
            if len(self.free_pages) - len(kept) < leaving:
                raise ValueError(f"of the {leaving} pages beyond {size} tokens some are in use")
        grown = max(num_pages, self.num_pages)
        more = torch.arange(self.num_pages + 1, grown + 1, device=self.device)
        self.free_pages = torch.cat([kept, more])
        self.num_pages, self.size = num_pages, num_pages * self.page_size

    def get_kvcache(self) -> "KVCache | None":
        return self._kvcache

    def get_cpu_copy(self, indices: torch.Tensor) -> Any:
        """What the pool holds in these slots, in host memory; for `load_cpu_copy` alone."""
        assert self._kvcache is not None, "an allocator without a pool has nothing to copy"
        return self._kvcache.get_cpu_copy(indices)

    def load_cpu_copy(self, kv_cache_cpu: Any, indices: torch.Tensor) -> None:
        assert self._kvcache is not None, "an allocator without a pool has nothing to fill"
        self._kvcache.load_cpu_copy(kv_cache_cpu, indices)

    def available_size(self) -> int:
        """Tokens that can be allocated now."""
        return self.full_available_size()

    def full_available_size(self) -> int:
        """Of the pool that every token stands in; another pool may have less room."""
        return (len(self.free_pages) + self._num_released) * self.page_size

    def trim(self, reqs: "list[Req]", table: "ReqToTokenPool") -> None:
        """Called before the next tokens of these requests are computed: frees what none of them
        attends to, if there is a pool for which that makes a difference.
        """

    def check_window(self, holders: "list[Req]") -> None:
        """RuntimeError if a second pool does not add up."""

    def num_pages_of(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """`need_size` tokens, a multiple of the page size."""
        assert need_size % self.page_size == 0, f"{need_size} is no multiple of {self.page_size}"
        pages = self._take(need_size // self.page_size, sort=True)
        return None if pages is None else self._slots(pages)

    def alloc_extend(self, *args: Any, **named: Any) -> torch.Tensor | None:
        """(prefix_lens_cpu, seq_lens_cpu, last_loc): slots for tokens `prefix_len … seq_len - 1` of
        each request, one after the other.

        `last_loc` is the slot of the token before, whose page is filled up first; it is not looked
        at where the prefix ends with a page. Lengths and slots are lists or tensors. The longer
        forms (prefix_lens, prefix_lens_cpu, seq_lens, seq_lens_cpu, last_loc, extend_num_tokens)
        and (prefix_lens, seq_lens, last_loc, extend_num_tokens) are taken too.
        """
        prefix_lens_cpu, seq_lens_cpu, last_loc = extend_arguments(args, named)
        size = self.page_size
        counts = [
            self.num_pages_of(seq) - self.num_pages_of(prefix)
            for prefix, seq in zip(prefix_lens_cpu, seq_lens_cpu, strict=True)
        ]
        pages = self._take(sum(counts), sort=True)
        if pages is None:
            return None
        parts = [pages[:0]]
        for prefix, seq, last, own in zip(
            prefix_lens_cpu, seq_lens_cpu, last_loc, torch.split(pages, counts), strict=True
        ):
            room = min(-prefix % size, seq - prefix)
            parts.append(torch.arange(last + 1, last + 1 + room, device=self.device))
            parts.append(self._slots(own)[: seq - prefix - room])
        return torch.cat(parts)

    def alloc_decode(self, *args: Any, **named: Any) -> torch.Tensor | None:
        """(seq_lens_cpu, last_loc): one slot per request, for token `seq_len - 1`.

        last_loc: [batch_size], where the token before lies. (seq_lens, seq_lens_cpu, last_loc) is
        taken too.
        """
        seq_lens, last_loc = decode_arguments(args, named)
        seq_lens_cpu = as_list(seq_lens)
        starts = [i for i, seq in enumerate(seq_lens_cpu) if (seq - 1) % self.page_size == 0]
        pages = self._take(len(starts), sort=False)
        if pages is None:
            return None
        slots = torch.as_tensor(last_loc, device=self.device).to(torch.int64) + 1
        slots[starts] = pages * self.page_size
        return slots

    def free(self, free_index: torch.Tensor) -> None:
        """Gives slots back, at the end of the group if one is open. An empty tensor is fine."""
        if free_index.numel() == 0:
            return
        if self._group is not None:
            self._group.append(free_index)
            return
        self._release(self._pages_of(free_index))

    def free_group_begin(self) -> None:
        """Until `free_group_end`, `free` only collects, so pieces of one page come back as one."""
        self._group = []

    def free_group_end(self) -> None:
        pieces, self._group = self._group, None
        if pieces:
            self.free(torch.cat([piece.to(torch.int64) for piece in pieces]))

    def merge_and_sort_free(self) -> None:
        """Joins released pages to the free ones. A page that is free twice raises RuntimeError."""
        if not self._num_released:
            return
        pages = torch.cat([self.free_pages, *self._released])
        self._released, self._num_released = [], 0
        if self.need_sort:
            pages = torch.sort(pages).values
            twice = pages[1:][pages[1:] == pages[:-1]]
            if len(twice):
                raise RuntimeError(f"KV pages were freed twice: {twice[:8].tolist()}")
        self.free_pages = pages

    def backup_state(self) -> tuple[torch.Tensor, ...]:
        """For `restore_state` alone: what is allocated in between becomes free again."""
        return self.free_pages, torch.cat([self.free_pages[:0], *self._released])

    def restore_state(self, state: tuple[torch.Tensor, ...]) -> None:
        self.free_pages, released = state
        self._released = [released]
        self._num_released = len(released)

    def _take(self, num_pages: int, *, sort: bool) -> torch.Tensor | None:
        """The lowest free pages. Decode steps skip the sort: they need no neighbours."""
        if num_pages > len(self.free_pages) + self._num_released:
            return None
        if sort or num_pages > len(self.free_pages):
            self.merge_and_sort_free()
        pages, self.free_pages = self.free_pages[:num_pages], self.free_pages[num_pages:]
        return pages

    def _release(self, pages: torch.Tensor) -> None:
        self._released.append(pages)
        self._num_released += len(pages)

    def _pages_of(self, slots: torch.Tensor) -> torch.Tensor:
        slots = slots.to(torch.int64)
        return slots if self.page_size == 1 else torch.unique(slots // self.page_size)

    def _slots(self, pages: torch.Tensor) -> torch.Tensor:
        if self.page_size == 1:
            return pages
        offsets = torch.arange(self.page_size, device=self.device)
        return (pages[:, None] * self.page_size + offsets).reshape(-1)


class TokenToKVPoolAllocator(BaseTokenToKVPoolAllocator):
    """Pages of one token."""

    def __init__(
        self,
        size: int,
        dtype: torch.dtype,
        device: str,
        kvcache: "KVCache | None",
        need_sort: bool = True,
    ) -> None:
        super().__init__(size, 1, dtype, device, kvcache, need_sort)


class PagedTokenToKVPoolAllocator(BaseTokenToKVPoolAllocator):
    """Pages of several tokens."""


# ------------------------------------------------------------------ arguments, in all their forms


def extend_arguments(
    args: tuple[Any, ...], named: dict[str, Any]
) -> tuple[list[int], list[int], list[int]]:
    """prefix_lens, seq_lens and last_loc of a call of `alloc_extend`."""
    names = {
        6: ("prefix_lens", "prefix_lens_cpu", "seq_lens", "seq_lens_cpu", "last_loc"),
        4: ("prefix_lens", "seq_lens", "last_loc"),
    }.get(len(args) + len(named), ("prefix_lens", "seq_lens", "last_loc"))
    given = dict(zip((*names, "extend_num_tokens"), args, strict=False)) | named
    found = [
        given.get("prefix_lens_cpu", given.get("prefix_lens")),
        given.get("seq_lens_cpu", given.get("seq_lens")),
        given.get("last_loc"),
    ]
    if any(each is None for each in found):
        raise TypeError(
            f"alloc_extend needs prefix_lens, seq_lens and last_loc, got {sorted(given)}"
        )
    prefix_lens, seq_lens, last_loc = (as_list(each) for each in found)
    return prefix_lens, seq_lens, last_loc


def decode_arguments(args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
    """seq_lens and last_loc of a call of `alloc_decode`."""
    three = len(args) + len(named) == 3
    names = ("seq_lens", "seq_lens_cpu", "last_loc") if three else ("seq_lens", "last_loc")
    given = dict(zip(names, args, strict=False)) | named
    seq_lens = given.get("seq_lens_cpu", given.get("seq_lens"))
    if seq_lens is None or given.get("last_loc") is None:
        raise TypeError(f"alloc_decode needs seq_lens and last_loc, got {sorted(given)}")
    return seq_lens, given["last_loc"]


def as_list(values: Any) -> list[int]:
    """Of a tensor, or of any other sequence of whole numbers."""
    return values.tolist() if isinstance(values, torch.Tensor) else list(values)
