"""Hands out slots of the KV pool, in whole pages, lowest first."""

from typing import TYPE_CHECKING, Any

import torch

from sglang.srt.mem_cache.page_pool import PagePool

if TYPE_CHECKING:
    from sglang.srt.core.request import Req
    from sglang.srt.mem_cache.memory_pool import KVCache, ReqToTokenPool


class BaseTokenToKVPoolAllocator(PagePool):
    """Slots of one KV pool. Padding tokens write to page 0, so slots run from `page_size` to
    `size + page_size - 1`.

    Every `alloc…` returns int64 slots, or None and no change when too few pages are free. What was
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
        super().__init__(size, page_size, device, need_sort)
        self.dtype = dtype
        self._kvcache = kvcache

    def clear(self) -> None:
        super().clear()
        self._group: list[torch.Tensor] | None = None

    def resize(self, size: int) -> None:
        if self._kvcache is not None and size > self._kvcache.size:
            raise ValueError(f"the KV pool has room for {self._kvcache.size} tokens, not {size}")
        super().resize(size)

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

    def available_after_trim(self, reqs: "list[Req]") -> int:
        """`available_size` as it would be after `trim`."""
        return self.available_size()

    def trim(self, reqs: "list[Req]", table: "ReqToTokenPool") -> None:
        """Called before the next tokens of these requests are computed: frees what none of them
        attends to, if there is a pool for which that makes a difference.
        """

    def check_window(self, holders: "list[Req]") -> None:
        """RuntimeError if a second pool does not add up."""

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
