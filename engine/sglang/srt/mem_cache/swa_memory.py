"""Two pools for models that have windows in some layers: what fell out of one frees its place."""

from collections.abc import Sequence

import torch

from sglang.srt.core.request import Req
from sglang.srt.mem_cache.allocator import BaseTokenToKVPoolAllocator
from sglang.srt.mem_cache.memory_pool import (
    AttentionLayer,
    KVCache,
    KVDims,
    MHATokenToKVPool,
    ReqToTokenPool,
)
from sglang.srt.mem_cache.page_pool import PagePool

# Places are given up so many at a time: one by one they would cost more than they are worth.
LEAST_TRIMMED = 32  # tokens


class LayersKVPool(MHATokenToKVPool):
    """Keys and values of some of a model's layers, by the numbers that they have in the model."""

    def __init__(self, size: int, page_size: int, dims: KVDims, device: str) -> None:
        super().__init__(size, page_size, dims, device)
        self._places = {layer: place for place, layer in enumerate(dims.layer_ids)}

    @property
    def layer_ids(self) -> Sequence[int]:
        return self.dims.layer_ids

    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        return self.k_buffer[self._places[layer_id]]

    def get_value_buffer(self, layer_id: int) -> torch.Tensor:
        return self.v_buffer[self._places[layer_id]]


class SWAKVPool(KVCache):
    """A pool for the layers that attend to everything, and a smaller one for those with a window.

    Slots are those of the full pool; `window_pages` tells which page of the window pool goes with
    a page of the full one. An entry outlives the page's place, so that a pass that was planned
    before it was given up still finds it: nothing overwrites it before that pass.
    """

    def __init__(self, size: int, size_swa: int, page_size: int, dims: KVDims, device: str) -> None:
        super().__init__(size, page_size, dims.dtype, device)
        self.dims, self.num_layers = dims, dims.num_layers
        full, window = dims.split()
        self.full_kv_pool = LayersKVPool(size, page_size, full, device)
        self.swa_kv_pool = LayersKVPool(size_swa, page_size, window, device)
        self._pools = [
            self.swa_kv_pool if layer in dims.window_layers else self.full_kv_pool
            for layer in range(dims.num_layers)
        ]
        num_pages = size // page_size + 1
        self.window_pages = torch.zeros(num_pages, dtype=torch.int64, device=device)

    def is_window_layer(self, layer_id: int) -> bool:
        return self._pools[layer_id] is self.swa_kv_pool

    def translate_loc_from_full_to_swa(self, slots: torch.Tensor) -> torch.Tensor:
        """Slots of the window pool: where layers with a window keep the same tokens."""
        slots = slots.to(torch.int64)
        pages = self.window_pages[slots // self.page_size]
        return pages * self.page_size + slots % self.page_size

    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        return self._pools[layer_id].get_key_buffer(layer_id)

    def get_value_buffer(self, layer_id: int) -> torch.Tensor:
        return self._pools[layer_id].get_value_buffer(layer_id)

    def set_kv_buffer(
        self,
        layer: AttentionLayer,
        loc: torch.Tensor,
        cache_k: torch.Tensor,
        cache_v: torch.Tensor,
        k_scale: float | None = None,
        v_scale: float | None = None,
    ) -> None:
        if self.is_window_layer(layer.layer_id):
            loc = self.translate_loc_from_full_to_swa(loc)
        pool = self._pools[layer.layer_id]
        pool.set_kv_buffer(layer, loc, cache_k, cache_v, k_scale, v_scale)

    def store_by_torch(self) -> None:
        self.full_kv_pool.store_by_torch()
        self.swa_kv_pool.store_by_torch()

    def get_cpu_copy(self, indices: torch.Tensor) -> list[list[torch.Tensor]]:
        return [
            [buffer[self._own(layer, indices)].to("cpu") for buffer in self.layer_buffers(layer)]
            for layer in range(self.num_layers)
        ]

    def load_cpu_copy(self, kv_cache_cpu: list[list[torch.Tensor]], indices: torch.Tensor) -> None:
        for layer, copies in enumerate(kv_cache_cpu):
            self._pools[layer].load_layer(layer, copies, self._own(layer, indices))

    def copy_pages(self, targets: torch.Tensor, sources: torch.Tensor) -> None:
        self.full_kv_pool.copy_pages(targets, sources)
        self.swa_kv_pool.copy_pages(self.window_pages[targets], self.window_pages[sources])

    def _own(self, layer_id: int, slots: torch.Tensor) -> torch.Tensor:
        if self.is_window_layer(layer_id):
            return self.translate_loc_from_full_to_swa(slots)
        return slots


class SWATokenToKVPoolAllocator(BaseTokenToKVPoolAllocator):
    """Hands out a page of the window pool with every page of the full one.

    `free` gives both back, `free_swa` that of the window pool alone. A request owns all its pages:
    no prefix cache shares them, as a cached prefix would need its last window in the second pool.
    """

    def __init__(
        self,
        size: int,
        size_swa: int,
        page_size: int,
        kvcache: SWAKVPool,
        need_sort: bool = True,
    ) -> None:
        dtype, device = kvcache.dtype, kvcache.device
        self._swa = PagePool(size_swa, page_size, device, need_sort)
        self._window_len = kvcache.dims.window_len
        self._window_pages = kvcache.window_pages
        # [num_pages + 1] whether a page of the full pool has one of the window pool
        self._has_window = torch.zeros(size // page_size + 1, dtype=torch.bool, device=device)
        super().__init__(size, page_size, dtype, device, kvcache, need_sort)
        self.size_swa = self._swa.size

    def clear(self) -> None:
        super().clear()
        self._swa.clear()
        self._has_window.zero_()

    def available_size(self) -> int:
        """Tokens that fit into both pools now."""
        return min(self.full_available_size(), self.swa_available_size())

    def swa_available_size(self) -> int:
        return self._swa.full_available_size()

    def num_window_tokens(self) -> int:
        """Tokens of the pages that stand in the window pool."""
        return int(self._has_window.sum()) * self.page_size

    def available_after_trim(self, reqs: list[Req]) -> int:
        freed = sum(self._trimmed_start(req) - req.window_start for req in reqs)
        return min(self.full_available_size(), self.swa_available_size() + freed)

    def free_swa(self, free_index: torch.Tensor) -> None:
        """Slots that no layer with a window will read again. Whole pages, as in `free`."""
        self._give_window_back(self._pages_of(free_index))

    def trim(self, reqs: list[Req], table: ReqToTokenPool) -> None:
        for req in reqs:
            end = self._trimmed_start(req)
            if end > req.window_start:
                self.free_swa(table.slots(req, req.window_start, end))
                req.window_start = end

    def check_window(self, holders: list[Req]) -> None:
        held = sum(
            self.num_pages_of(req.kv_committed_len) * self.page_size - req.window_start
            for req in holders
        )
        free, used = self.swa_available_size(), self.num_window_tokens()
        if used != held or free + used != self.size_swa:
            raise RuntimeError(
                f"window pool of {self.size_swa} tokens does not add up: {free} free, {used} "
                f"taken, {held} held by {len(holders)} requests"
            )

    def merge_and_sort_free(self) -> None:
        super().merge_and_sort_free()
        self._swa.merge_and_sort_free()

    def backup_state(self) -> tuple[torch.Tensor, ...]:
        kept = (self._window_pages.clone(), self._has_window.clone())
        return (*super().backup_state(), *self._swa.backup_state(), *kept)

    def restore_state(self, state: tuple[torch.Tensor, ...]) -> None:
        full, swa, (pages, has) = state[:2], state[2:4], state[4:]
        super().restore_state(full)
        self._swa.restore_state(swa)
        self._window_pages.copy_(pages)
        self._has_window.copy_(has)

    def _trimmed_start(self, req: Req) -> int:
        """Where the request's part of the window pool begins after `trim`."""
        # A token attends to itself and to `window_len - 1` before it. A pass under way still
        # reads what its first one does: a place given up now may be written to before that.
        out = req.kv_valid_len - self._window_len + 1
        end = out // self.page_size * self.page_size
        return end if end - req.window_start >= LEAST_TRIMMED else req.window_start

    def _take(self, num_pages: int, *, sort: bool) -> torch.Tensor | None:
        if num_pages * self.page_size > self.available_size():
            return None
        pages, window = super()._take(num_pages, sort=sort), self._swa._take(num_pages, sort=sort)
        assert pages is not None and window is not None, "both were asked before"
        self._window_pages[pages] = window
        self._has_window[pages] = True
        return pages

    def _release(self, pages: torch.Tensor) -> None:
        self._give_window_back(pages)
        super()._release(pages)

    def _give_window_back(self, pages: torch.Tensor) -> None:
        pages = pages[self._has_window[pages]]
        self._swa._release(self._window_pages[pages])
        self._has_window[pages] = False
