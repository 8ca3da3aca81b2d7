"""The adapters that are on the device: as many as one pass may need."""

from collections.abc import Collection, Iterable, Mapping

import torch

from sglang.srt.lora.eviction_policy import EvictionPolicy
from sglang.srt.lora.layers import PoolLayer
from sglang.srt.lora.lora import LoRAAdapter
from sglang.srt.lora.targets import Target


class LoRAMemoryPool:
    """Places of one size, allocated once. The base model needs none."""

    def __init__(
        self,
        targets: Iterable[Target],
        num_slots: int,
        max_rank: int,
        policy: EvictionPolicy,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.layers = {
            target.path: PoolLayer(target, num_slots, max_rank, dtype, device) for target in targets
        }
        self.num_slots = num_slots
        self._policy = policy
        self._slots: dict[str, int] = {}

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers.values())

    @property
    def num_used(self) -> int:
        return len(self._slots)

    def bring_in(
        self, wanted: Collection[str], adapters: Mapping[str, LoRAAdapter], pinned: Collection[str]
    ) -> dict[str, int]:
        """A place for each of the wanted adapters, which are at most as many as there are places.

        Called between passes, in their order. `pinned` ones keep their places.
        """
        for lora_id in wanted:
            if lora_id not in self._slots:
                self._slots[lora_id] = slot = self._free_slot(wanted, pinned)
                self._write(slot, adapters[lora_id])
            self._policy.mark_used(lora_id)
        return {lora_id: self._slots[lora_id] for lora_id in wanted}

    def remove(self, lora_id: str) -> None:
        """The adapter is gone; it may have had no place."""
        self._slots.pop(lora_id, None)
        self._policy.remove(lora_id)

    def _free_slot(self, wanted: Collection[str], pinned: Collection[str]) -> int:
        if len(self._slots) == self.num_slots:
            candidates = set(self._slots) - set(wanted) - set(pinned)
            assert candidates, "a pass has more adapters than places"
            self.remove(self._policy.select_victim(candidates))
        taken = set(self._slots.values())
        return next(slot for slot in range(self.num_slots) if slot not in taken)

    def _write(self, slot: int, adapter: LoRAAdapter) -> None:
        for path, layer in self.layers.items():
            own = adapter.layers.get(path)
            layer.ranks[slot] = rank = adapter.config.r if own is not None else 0
            if own is not None:
                layer.a[slot, :rank].copy_(own.a)
                layer.b[slot, :, :rank].copy_(own.b)
