"""Which pages of a pool are free."""

import torch


class PagePool:
    """Pages are handed out lowest first, page 0 never. Sizes are in tokens."""

    def __init__(self, size: int, page_size: int, device: str, need_sort: bool = True) -> None:
        if page_size < 1 or size < page_size:
            raise ValueError(f"A KV pool needs at least one page: {size=} tokens, {page_size=}.")
        self.num_pages = size // page_size
        self.size = self.num_pages * page_size
        self.page_size = page_size
        self.device = device
        self.need_sort = need_sort  # released pages are sorted in, so that answers stay contiguous
        self.clear()

    def clear(self) -> None:
        """All pages are free; whoever held slots holds them no longer."""
        self.free_pages = torch.arange(1, self.num_pages + 1, dtype=torch.int64, device=self.device)
        self._released: list[torch.Tensor] = []
        self._num_released = 0

    def resize(self, size: int) -> None:
        """From now on there are so many tokens, rounded down to pages. ValueError, and no change,
        if a page that goes is in use.
        """
        num_pages = size // self.page_size
        if num_pages < 1:
            raise ValueError(f"a KV pool has at least one page of {self.page_size}, not {size}")
        self.merge_and_sort_free()
        kept = self.free_pages[self.free_pages <= num_pages]
        leaving = self.num_pages - num_pages
        if len(self.free_pages) - len(kept) < leaving:
            raise ValueError(f"of the {leaving} pages beyond {size} tokens some are in use")
        grown = max(num_pages, self.num_pages)
        more = torch.arange(self.num_pages + 1, grown + 1, device=self.device)
        self.free_pages = torch.cat([kept, more])
        self.num_pages, self.size = num_pages, num_pages * self.page_size

    def full_available_size(self) -> int:
        """Of the pool that every token stands in; another pool may have less room."""
        return (len(self.free_pages) + self._num_released) * self.page_size

    def num_pages_of(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

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
