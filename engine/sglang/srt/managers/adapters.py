"""Adapters in the scheduler: which requests may compute together, and what comes and goes."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import msgspec

from sglang.srt.core.messages import GenerateInput
from sglang.srt.core.request import Req, RequestState
from sglang.srt.lora.lora_manager import LoRAUpdateResult
from sglang.srt.lora.lora_registry import LoRARef
from sglang.srt.managers.admission import Refused
from sglang.srt.managers.control import Operation


class LoadedAdapters(Protocol):
    """Those beside the model. See `LoRAManager`."""

    max_loras_per_batch: int

    @property
    def pinned(self) -> frozenset[str]: ...

    @property
    def num_slots_used(self) -> int: ...

    def __contains__(self, lora_id: str) -> bool: ...

    def load_lora_adapter(self, lora_ref: LoRARef) -> LoRAUpdateResult: ...

    def unload_lora_adapter(self, lora_id: str) -> LoRAUpdateResult: ...


class AdapterRoom:
    """How many different adapters a pass may have. Pinned ones have places of their own.

    With `drain_after`, a request that has waited so many seconds for a place keeps later ones with
    other adapters from being admitted before it, so that a place comes free at last.
    """

    def __init__(
        self,
        adapters: LoadedAdapters | None,
        drain_after: float = 0.0,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._adapters = adapters
        self._drain_after = drain_after
        self._clock = clock
        self._kept_waiting: Req | None = None

    def fits_beside(self, req: Req, others: Iterable[Req]) -> bool:
        """Asked for waiting requests in the order in which they should begin."""
        if self._adapters is None or req.lora_id is None:
            return True
        if self._is_drained_for(req):
            return False
        used = {other.lora_id for other in others} - {None}
        if len(used | self._adapters.pinned | {req.lora_id}) <= self._adapters.max_loras_per_batch:
            return True
        waited = self._clock() - req.times.received
        if self._kept_waiting is None and 0 < self._drain_after <= waited:
            self._kept_waiting = req
        return False

    def _is_drained_for(self, req: Req) -> bool:
        """Whether the place that the request would take or keep is to come free for another."""
        first = self._kept_waiting
        if first is not None and first.state is not RequestState.WAITING:
            first = self._kept_waiting = None
        return first is not None and first.lora_id != req.lora_id

    def check(self, request: GenerateInput) -> None:
        """Refused: its adapter is not loaded."""
        if request.lora_id is None:
            return
        if self._adapters is None or request.lora_id not in self._adapters:
            raise Refused(f"LoRA adapter {request.lora_name!r} is not loaded here any more.")


def lora_operations(adapters: LoadedAdapters | None, live: Iterable[Req]) -> dict[str, Operation]:
    """By name. The launcher knows the names of adapters, and who uses them."""

    def load(args: Mapping[str, object]) -> dict[str, object]:
        ref = msgspec.convert(dict(args), LoRARef)
        return _shown(_served(adapters).load_lora_adapter(ref))

    def unload(args: Mapping[str, object]) -> dict[str, object]:
        lora_id = str(args["lora_id"])
        assert all(req.lora_id != lora_id for req in live), f"a request uses {lora_id}"
        return _shown(_served(adapters).unload_lora_adapter(lora_id))

    return {"load_lora": load, "unload_lora": unload}


def _served(adapters: LoadedAdapters | None) -> LoadedAdapters:
    if adapters is None:
        raise ValueError("This engine serves no adapters; start it with --enable-lora.")
    return adapters


def _shown(result: LoRAUpdateResult) -> dict[str, object]:
    return {"success": result.success, "error_message": result.error_message}
