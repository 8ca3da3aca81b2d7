"""Adapters beside a loaded model: which are loaded, and which tokens of a pass use them."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from sglang.srt.arg_groups.lora import ALL_MODULES, LoRAArgs
from sglang.srt.layers.linear import Linear
from sglang.srt.lora.eviction_policy import get_eviction_policy
from sglang.srt.lora.layers import AdaptedForward, Apply, PassRows, PoolLayer
from sglang.srt.lora.lora import LoRAAdapter
from sglang.srt.lora.lora_config import LoRAConfig
from sglang.srt.lora.lora_registry import LoRARef, starting_refs
from sglang.srt.lora.mem_pool import LoRAMemoryPool
from sglang.srt.lora.targets import Target, find_targets, names_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoRAOptions:
    """Which adapters are there from the start, and what may come later."""

    lora_paths: tuple[LoRARef, ...] = ()
    max_lora_rank: int | None = None  # None: the largest of `lora_paths`
    target_modules: frozenset[str] | None = None  # None: those of `lora_paths`
    max_loras_per_batch: int = 8
    eviction_policy: str = "lru"


@dataclass(frozen=True)
class LoRAUpdateResult:
    """What came of loading or unloading an adapter."""

    success: bool
    error_message: str | None = None
    loaded_adapters: dict[str, str] = field(default_factory=dict)  # path by name


class LoRAManager:
    """Keeps all loaded adapters in host memory, and those of the last passes on the device.

    Adapters come and go between passes; `prepare` belongs to the thread that computes.
    """

    def __init__(
        self,
        model: nn.Module,
        options: LoRAOptions,
        dtype: torch.dtype,
        device: torch.device,
        apply: Apply = lambda product, x: product(x),
    ) -> None:
        """Changes the model's layers so that they ask for adapters. ValueError: `lora_paths`."""
        self.max_loras_per_batch = options.max_loras_per_batch
        self._dtype, self._device = dtype, device
        configs = [_config_of(ref) for ref in options.lora_paths]
        self.max_lora_rank = options.max_lora_rank or max(config.r for config in configs)
        self._everywhere = find_targets(model)
        self._targets = _limited(self._everywhere, options.target_modules, configs)
        self._adapters: dict[str, LoRAAdapter] = {}
        self._refs: dict[str, LoRARef] = {}
        self._rows = PassRows()
        self._pool = LoRAMemoryPool(
            self._targets.values(),
            options.max_loras_per_batch,
            self.max_lora_rank,
            get_eviction_policy(options.eviction_policy),
            dtype,
            device,
        )
        _install(self._pool, self._rows, apply)
        for ref in options.lora_paths:
            self._load(ref)
        logger.info(
            "Adapters: %d loaded, %d places of rank %d = %.3f GiB.",
            len(self._refs), self.max_loras_per_batch, self.max_lora_rank, self.nbytes / 2**30,
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        """On the device."""
        return self._pool.nbytes

    @property
    def refs(self) -> list[LoRARef]:
        """The loaded adapters."""
        return list(self._refs.values())

    @property
    def pinned(self) -> frozenset[str]:
        """Ids of the loaded adapters that keep their places."""
        return frozenset(lora_id for lora_id, ref in self._refs.items() if ref.pinned)

    @property
    def num_slots_used(self) -> int:
        return self._pool.num_used

    def __contains__(self, lora_id: str) -> bool:
        return lora_id in self._refs

    def load_lora_adapter(self, lora_ref: LoRARef) -> LoRAUpdateResult:
        """Reads and checks the adapter; what is wrong with it is in the result."""
        try:
            self._load(lora_ref)
        except ValueError as error:
            return self._result(str(error))
        return self._result()

    def unload_lora_adapter(self, lora_id: str) -> LoRAUpdateResult:
        """Called when no request uses it."""
        if lora_id not in self._refs:
            return self._result(f"no adapter has the id {lora_id}")
        del self._refs[lora_id], self._adapters[lora_id]
        self._pool.remove(lora_id)
        return self._result()

    def prepare(self, lora_ids: Sequence[str | None], lens: Sequence[int]) -> None:
        """Called before each pass, with each request's adapter and number of tokens."""
        wanted = list(dict.fromkeys(lora_id for lora_id in lora_ids if lora_id is not None))
        if not wanted:
            self._rows.groups = []
            return
        slots = self._pool.bring_in(wanted, self._adapters, self.pinned)
        self._rows.groups = [
            (slots[lora_id], self._rows_of(lora_id, lora_ids, lens)) for lora_id in wanted
        ]

    def _rows_of(
        self, lora_id: str, lora_ids: Sequence[str | None], lens: Sequence[int]
    ) -> torch.Tensor | None:
        if all(each == lora_id for each in lora_ids):
            return None
        rows: list[int] = []
        start = 0
        for each, length in zip(lora_ids, lens, strict=True):
            if each == lora_id:
                rows.extend(range(start, start + length))
            start += length
        return torch.tensor(rows, dtype=torch.int64, device=self._device)

    def _load(self, ref: LoRARef) -> None:
        assert ref.lora_id not in self._refs, "an id is used once"
        with _about(ref):
            config = LoRAConfig.from_path(ref.lora_path)
            self._check(ref, config)
            adapter = LoRAAdapter.load(config, self._everywhere, self._dtype)
        self._adapters[ref.lora_id], self._refs[ref.lora_id] = adapter, ref

    def _check(self, ref: LoRARef, config: LoRAConfig) -> None:
        if config.r > self.max_lora_rank:
            raise ValueError(
                f"its rank is {config.r}, and places here are for rank {self.max_lora_rank}; start "
                f"with --max-lora-rank {config.r}"
            )
        outside = {path for path in self._everywhere if config.covers(path)} - set(self._targets)
        if outside:
            names = ", ".join(names_of(self._everywhere[path] for path in outside))
            allowed = ", ".join(names_of(self._targets.values()))
            raise ValueError(
                f"it changes {names}, and places here are for {allowed}; start with "
                "--lora-target-modules all"
            )
        if ref.pinned and len(self.pinned) + 1 >= self.max_loras_per_batch:
            raise ValueError(
                f"{len(self.pinned)} adapters are pinned already, and of "
                f"{self.max_loras_per_batch} places (--max-loras-per-batch) one must stay free"
            )

    def _result(self, error: str | None = None) -> LoRAUpdateResult:
        loaded = {ref.lora_name: ref.lora_path for ref in self._refs.values()}
        return LoRAUpdateResult(error is None, error, loaded)


@contextmanager
def _about(ref: LoRARef) -> Iterator[None]:
    """Mistakes of the adapter say which one it is."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"LoRA adapter {ref.lora_name!r} cannot be loaded: {error}") from error


def _config_of(ref: LoRARef) -> LoRAConfig:
    with _about(ref):
        return LoRAConfig.from_path(ref.lora_path)


def _limited(
    everywhere: Mapping[str, Target], names: frozenset[str] | None, configs: Sequence[LoRAConfig]
) -> dict[str, Target]:
    """The targets that get places."""
    if names is None:
        return {
            path: target
            for path, target in everywhere.items()
            if any(config.covers(path) for config in configs)
        }
    return {
        path: target
        for path, target in everywhere.items()
        if ALL_MODULES in names or target.name in names
    }


def _install(pool: LoRAMemoryPool, rows: PassRows, apply: Apply) -> None:
    by_module: dict[Linear, list[PoolLayer]] = {}
    for layer in pool.layers.values():
        by_module.setdefault(layer.target.module, []).append(layer)
    for module, layers in by_module.items():
        adapted: Any = module
        adapted.forward = AdaptedForward(module.forward, layers, rows, apply)


def lora_options(args: LoRAArgs) -> LoRAOptions:
    """Of a server with --enable-lora."""
    targets = args.lora_target_modules
    return LoRAOptions(
        lora_paths=tuple(starting_refs(args)),
        max_lora_rank=args.max_lora_rank,
        target_modules=None if targets is None else frozenset(targets),
        max_loras_per_batch=args.max_loras_per_batch,
        eviction_policy=args.lora_eviction_policy,
    )
