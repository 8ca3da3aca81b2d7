"""Adapters by name: which there are, and how many requests use each."""

import asyncio
import uuid
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglang.srt.arg_groups.lora import LoRAArgs, lora_paths_of


def _new_id() -> str:
    return uuid.uuid4().hex


@dataclass(frozen=True)
class LoRARef:
    """One loading of an adapter. Its id is never used again, so nothing of an adapter that is gone
    can be taken for one of the same name.
    """

    lora_id: str = field(default_factory=_new_id)
    lora_name: str = ""
    lora_path: str = ""
    pinned: bool = False  # it keeps its place on the device

    @staticmethod
    def deterministic_id(lora_name: str, lora_path: str) -> str:
        """For adapters that are there from the start, whose ids two processes have to agree on."""
        return uuid.uuid5(uuid.NAMESPACE_URL, f"{len(lora_name)}:{lora_name}:{lora_path}").hex


class LoRARegistry:
    """Names are in the order of their last use, the one unused for longest first.

    All methods belong to one event loop.
    """

    def __init__(self, lora_paths: Iterable[LoRARef] = ()) -> None:
        self._refs: dict[str, LoRARef] = {}
        self._num_uses: dict[str, int] = {}  # by id; of unregistered ones too, while they are used
        self._unused: dict[str, asyncio.Event] = {}
        for ref in lora_paths:
            self._add(ref)

    async def register(self, lora_ref: LoRARef) -> None:
        """From now on requests may name it. ValueError: the name is taken."""
        self._add(lora_ref)

    async def unregister(self, lora_name: str) -> str:
        """From now on no request may name it. Its id, for `wait_for_unload`."""
        ref = self._refs.pop(lora_name, None)
        if ref is None:
            raise ValueError(
                f"LoRA adapter {lora_name!r} is not loaded. Loaded adapters: {self._shown()}."
            )
        return ref.lora_id

    async def acquire(self, lora_name: str | Sequence[str | None]) -> Any:
        """The id of the named adapter, used once more until `release`; of a list of names a list,
        in which None stays None.
        """
        if isinstance(lora_name, str):
            (lora_id,) = self._acquire([lora_name])
            return lora_id
        return self._acquire(lora_name)

    async def release(self, lora_id: str | Iterable[str | None]) -> None:
        """A use of each ends."""
        for each in [lora_id] if isinstance(lora_id, str) else lora_id:
            if each is None:
                continue
            self._num_uses[each] -= 1
            if self._num_uses[each] == 0 and each in self._unused:
                self._unused[each].set()

    async def wait_for_unload(self, lora_id: str) -> None:
        """Returns when nobody uses the adapter, which is unregistered; then forgets it."""
        if self._num_uses[lora_id]:
            unused = self._unused[lora_id] = asyncio.Event()
            await unused.wait()
            del self._unused[lora_id]
        del self._num_uses[lora_id]

    async def get_unregistered_loras(self, lora_names: Collection[str]) -> set[str]:
        """Those of the names that no request may use now."""
        return set(lora_names) - set(self._refs)

    async def lru_lora_name(self, exclude_pinned: bool = False) -> str | None:
        """The adapter that was unused for longest."""
        names = (name for name, ref in self._refs.items() if not (exclude_pinned and ref.pinned))
        return next(names, None)

    @property
    def num_registered_loras(self) -> int:
        return len(self._refs)

    def get_all_adapters(self) -> dict[str, LoRARef]:
        return dict(self._refs)

    def _add(self, ref: LoRARef) -> None:
        if ref.lora_name in self._refs:
            raise ValueError(
                f"LoRA adapter {ref.lora_name!r} is already loaded, from "
                f"{self._refs[ref.lora_name].lora_path}; unload it first, or choose another name."
            )
        self._refs[ref.lora_name] = ref
        self._num_uses[ref.lora_id] = 0

    def _acquire(self, names: Sequence[str | None]) -> list[str | None]:
        for name in names:
            if name is not None and name not in self._refs:
                raise ValueError(
                    f"Got LoRA adapter that has never been loaded: {name}. "
                    f"Loaded adapters: {self._shown()}."
                )
        ids: list[str | None] = []
        for name in names:
            if name is None:
                ids.append(None)
                continue
            ref = self._refs[name] = self._refs.pop(name)
            self._num_uses[ref.lora_id] += 1
            ids.append(ref.lora_id)
        return ids

    def _shown(self) -> str:
        return ", ".join(sorted(self._refs)) or "none"


def starting_refs(args: LoRAArgs) -> list[LoRARef]:
    """The adapters of --lora-paths, with the same ids in every process of this start. The ids
    change with the files: what is stored of an adapter's KV outlives the server.
    """
    refs = []
    for path in lora_paths_of(args):
        folder = Path(path.lora_path).expanduser()
        times = [file.stat().st_mtime_ns for file in sorted(folder.glob("adapter_*"))]
        lora_id = LoRARef.deterministic_id(path.lora_name, f"{path.lora_path} {times}")
        refs.append(LoRARef(lora_id, path.lora_name, path.lora_path, path.pinned))
    return refs
