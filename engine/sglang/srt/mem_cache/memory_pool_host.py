"""KV in host memory: the second tier, below the pool that attention reads."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch

from sglang.srt.arg_groups.hicache import LAYER_FIRST
from sglang.srt.mem_cache.allocator import BaseTokenToKVPoolAllocator
from sglang.srt.mem_cache.memory_pool import zeroed

if TYPE_CHECKING:
    from sglang.srt.mem_cache.memory_pool import KVCache

GB = 10**9
WIDTHS = (torch.int64, torch.int32, torch.int16, torch.uint8)
# From so many pages in a row on, a slice is copied faster than pages by index.
MIN_MEAN_RUN = 4


class HostKVPool(ABC):
    """Pages of KV as bytes, each as the device has it.

    A page is one row per device buffer; in what order the rows lie is the layout. Slots address
    tokens as on the device. Slots, pins and frees belong to the scheduler's thread; bytes of
    pinned pages belong to whoever pinned them.
    """

    layout: str

    def __init__(self, kvcache: "KVCache", size: int, page_size: int) -> None:
        self.page_size = page_size
        self.dtype = kvcache.dtype
        self.device_rows = device_rows(kvcache, page_size)
        self.row_bytes = [rows.shape[1] for rows in self.device_rows]
        self.page_bytes = sum(self.row_bytes)
        self._allocator = BaseTokenToKVPoolAllocator(
            size, page_size, kvcache.dtype, "cpu", None, need_sort=False
        )
        self.size = self._allocator.size
        self._pins = torch.zeros(self._allocator.num_pages + 1, dtype=torch.int32)
        self._is_dropped = torch.zeros(self._allocator.num_pages + 1, dtype=torch.bool)
        self.host_rows = self._allocate(self._allocator.num_pages + 1)
        # The same memory in the widest numbers that fit every row: copies by index go by number.
        wide = next(
            dtype for dtype in WIDTHS if not any(b % dtype.itemsize for b in self.row_bytes)
        )
        self._wide_device_rows = [rows.view(wide) for rows in self.device_rows]
        self._wide_host_rows = [rows.view(wide) for rows in self.host_rows]

    @abstractmethod
    def _allocate(self, num_pages: int) -> list[torch.Tensor]:
        """One [num_pages, row_bytes] view per device buffer."""

    @abstractmethod
    def get_data_page(self, index: int) -> torch.Tensor:
        """[page_bytes] uint8: the page that begins at slot `index`, rows in the device's order."""

    @abstractmethod
    def set_from_flat_data_page(self, index: int, data_page: torch.Tensor) -> None:
        """Fills the page that begins at slot `index`."""

    def get_dummy_flat_data_page(self) -> torch.Tensor:
        """Room for one page."""
        return torch.empty(self.page_bytes, dtype=torch.uint8)

    @property
    def page_format(self) -> str:
        """Equal texts are equal meanings of a page's bytes; layouts do not differ in it."""
        dtype = str(self.dtype).removeprefix("torch.")
        rows = ",".join(map(str, self.row_bytes))
        return f"page_size={self.page_size} dtype={dtype} rows={rows}"

    # ---------------------------------------------------------------- slots

    def available_size(self) -> int:
        return self._allocator.available_size()

    def alloc(self, num_tokens: int) -> torch.Tensor | None:
        return self._allocator.alloc(num_tokens)

    def free(self, slots: torch.Tensor) -> None:
        """Pages that are pinned become free when their last pin is gone."""
        pages = self.pages_of(slots)
        pinned = self._pins[pages] > 0
        self._is_dropped[pages[pinned]] = True
        self._allocator.free(pages[~pinned] * self.page_size)

    def pin(self, pages: torch.Tensor) -> None:
        self._pins.index_add_(0, pages, torch.ones(len(pages), dtype=torch.int32))

    def unpin(self, pages: torch.Tensor) -> None:
        self._pins.index_add_(0, pages, torch.full((len(pages),), -1, dtype=torch.int32))
        gone = pages[(self._pins[pages] == 0) & self._is_dropped[pages]]
        self._is_dropped[gone] = False
        self._allocator.free(gone * self.page_size)

    def is_pinned(self, slots: torch.Tensor) -> bool:
        return bool(self._pins[self.pages_of(slots)].any())

    def num_dropped_tokens(self) -> int:
        """In pages that nobody owns any more, and that are pinned still."""
        return int(self._is_dropped.sum()) * self.page_size

    def pages_of(self, slots: torch.Tensor) -> torch.Tensor:
        return slots[:: self.page_size] // self.page_size

    # ---------------------------------------------------------------- copies

    def copy_from_device(self, device_pages: torch.Tensor, host_pages: torch.Tensor) -> None:
        copy_rows(self._wide_device_rows, device_pages, self._wide_host_rows, host_pages)

    def copy_to_device(self, host_pages: torch.Tensor, device_pages: torch.Tensor) -> None:
        copy_rows(self._wide_host_rows, host_pages, self._wide_device_rows, device_pages)


class LayerFirstHostPool(HostKVPool):
    """A buffer per device buffer: copies between the tiers go through memory in order."""

    layout = LAYER_FIRST

    def _allocate(self, num_pages: int) -> list[torch.Tensor]:
        cpu = torch.device("cpu")
        return [zeroed((num_pages, size), torch.uint8, cpu) for size in self.row_bytes]

    def get_data_page(self, index: int) -> torch.Tensor:
        page = index // self.page_size
        return torch.cat([rows[page] for rows in self.host_rows])

    def set_from_flat_data_page(self, index: int, data_page: torch.Tensor) -> None:
        page = index // self.page_size
        for rows, piece in zip(self.host_rows, torch.split(data_page, self.row_bytes), strict=True):
            rows[page] = piece


class PageFirstHostPool(HostKVPool):
    """One buffer, a page in one piece: storage reads and writes it without a copy."""

    layout = "page_first"

    def _allocate(self, num_pages: int) -> list[torch.Tensor]:
        shape = (num_pages, self.page_bytes)
        self._pages = zeroed(shape, torch.uint8, torch.device("cpu"))
        return list(torch.split(self._pages, self.row_bytes, dim=1))

    def get_data_page(self, index: int) -> torch.Tensor:
        return self._pages[index // self.page_size]

    def set_from_flat_data_page(self, index: int, data_page: torch.Tensor) -> None:
        self._pages[index // self.page_size] = data_page


HOST_POOLS: dict[str, type[HostKVPool]] = {
    pool.layout: pool for pool in (LayerFirstHostPool, PageFirstHostPool)
}


def device_rows(kvcache: "KVCache", page_size: int) -> list[torch.Tensor]:
    """Every buffer of the pool as [num_pages, bytes of a page]."""
    buffers = [
        buffer for layer in range(kvcache.num_layers) for buffer in kvcache.layer_buffers(layer)
    ]
    if not buffers:
        raise ValueError(
            f"--enable-hierarchical-cache: {type(kvcache).__name__} does not say what it keeps "
            "(layer_buffers); leave the option out"
        )
    return [buffer.view(len(buffer) // page_size, -1).view(torch.uint8) for buffer in buffers]


def copy_rows(
    sources: list[torch.Tensor],
    source_pages: torch.Tensor,
    targets: list[torch.Tensor],
    target_pages: torch.Tensor,
) -> None:
    """targets[i][target_pages] = sources[i][source_pages], from device to device."""
    starts = run_starts(source_pages, target_pages)
    is_long = len(source_pages) >= MIN_MEAN_RUN * len(starts)
    runs = list(zip(starts, [*starts[1:], len(source_pages)], strict=True)) if is_long else []
    first_sources, first_targets = source_pages.tolist(), target_pages.tolist()
    for source, target in zip(sources, targets, strict=True):
        for start, end in runs:
            here, there = first_sources[start], first_targets[start]
            length = end - start
            target[there : there + length].copy_(source[here : here + length])
        if not runs:
            rows = source.index_select(0, source_pages).to(target.device)
            target.index_copy_(0, target_pages, rows)


def run_starts(one: torch.Tensor, other: torch.Tensor) -> list[int]:
    """Where neither list of pages goes on by one."""
    one, other = one.cpu(), other.cpu()
    breaks = (one[1:] - one[:-1] != 1) | (other[1:] - other[:-1] != 1)
    starts: list[int] = (breaks.nonzero().flatten() + 1).tolist()
    return [0, *starts]


def host_pool_tokens(
    device_tokens: int, token_bytes: int, ratio: float | None, size_gb: int, default_ratio: float
) -> int:
    """How many tokens the host tier holds: by its size, else by the pool's."""
    if size_gb:
        return size_gb * GB // token_bytes
    return int(device_tokens * (default_ratio if ratio is None else ratio))
