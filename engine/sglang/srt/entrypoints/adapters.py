"""Adapters by name: who may use them, and how they come and go while the worker serves."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from sglang.srt.arg_groups.lora import LoRAArgs
from sglang.srt.core.messages import GenerateInput
from sglang.srt.entrypoints.answer_inputs import InvalidRequest
from sglang.srt.lora.lora_registry import LoRARef, LoRARegistry, starting_refs

Control = Callable[[str, dict[str, object]], Awaitable[dict[str, object]]]
Result = TypeVar("Result")
MAX_RELOADS = 8  # others may put away again what a request needs


class Adapters:
    """The names are here, the weights in the scheduler process. Belongs to one event loop.

    An adapter that had to make room for another is loaded again when a request names it.
    """

    def __init__(self, args: LoRAArgs, control: Control) -> None:
        self._args = args
        self._control = control
        self.registry = LoRARegistry(starting_refs(args) if args.enable_lora else ())
        self._put_away: dict[str, LoRARef] = {}
        self._changes = asyncio.Lock()  # one adapter comes or goes at a time
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def paths(self) -> dict[str, str]:
        """Of those that requests may name, by name."""
        refs = [*self.registry.get_all_adapters().values(), *self._put_away.values()]
        return {ref.lora_name: ref.lora_path for ref in refs}

    @asynccontextmanager
    async def used_by(self, inputs: Sequence[GenerateInput]) -> AsyncIterator[None]:
        """Gives the inputs the ids of the adapters they name, which stay loaded meanwhile.

        Raises InvalidRequest.
        """
        names = [entry.lora_name for entry in inputs]
        if not any(names):
            yield
            return
        ids = await self._acquire(names)
        try:
            for entry, lora_id in zip(inputs, ids, strict=True):
                entry.lora_id = lora_id
            yield
        finally:
            await self.registry.release(ids)

    async def load(self, name: str, path: str, pinned: bool = False) -> dict[str, Any]:
        """The reply of `/load_lora_adapter`; whatever is wrong with the adapter is in it."""
        ref = LoRARef(lora_name=name, lora_path=path, pinned=pinned)
        return await self._to_its_end(self._replied(self._load_new(ref)))

    async def unload(self, name: str) -> dict[str, Any]:
        """The reply of `/unload_lora_adapter`. Returns when the last request that uses the adapter
        has ended; new ones are refused from the start.
        """
        return await self._to_its_end(self._replied(self._unload_known(name)))

    async def _acquire(self, names: Sequence[str | None]) -> list[str | None]:
        try:
            for name in names:
                if name is not None:
                    self._check_enabled(name)
            wanted = {name for name in names if name is not None}
            for _ in range(MAX_RELOADS):
                missing = await self.registry.get_unregistered_loras(wanted)
                if not missing & set(self._put_away):
                    break
                await self._to_its_end(self._bring_back(wanted))
            ids: list[str | None] = await self.registry.acquire(names)
        except ValueError as error:
            raise InvalidRequest(str(error)) from None
        return ids

    async def _bring_back(self, names: set[str]) -> None:
        async with self._changes:
            for name in names & set(self._put_away):
                path = self._put_away[name].lora_path
                present = names - await self.registry.get_unregistered_loras(names)
                # Used now, so that they are not the next ones to go.
                await self.registry.release(await self.registry.acquire(sorted(present)))
                await self._load(LoRARef(lora_name=name, lora_path=path))
                del self._put_away[name]

    async def _load_new(self, ref: LoRARef) -> None:
        self._check_enabled(ref.lora_name)
        if ref.lora_name in self.paths:
            raise ValueError(
                f"LoRA adapter {ref.lora_name!r} is already loaded, from "
                f"{self.paths[ref.lora_name]}; unload it first, or choose another name."
            )
        await self._load(ref)

    async def _unload_known(self, name: str) -> None:
        self._check_enabled(name)
        if self._put_away.pop(name, None) is None:
            await self._unload(name)

    async def _load(self, ref: LoRARef) -> None:
        most = self._args.max_loaded_loras
        if most is not None and self.registry.num_registered_loras >= most:
            name = await self.registry.lru_lora_name(exclude_pinned=True)
            if name is None:
                raise ValueError(
                    f"--max-loaded-loras is {most}, and all loaded adapters are pinned; unload one"
                )
            old = self.registry.get_all_adapters()[name]
            self._put_away[name] = old
            await self._unload(name)
        result = await self._control(
            "load_lora",
            {
                "lora_id": ref.lora_id,
                "lora_name": ref.lora_name,
                "lora_path": ref.lora_path,
                "pinned": ref.pinned,
            },
        )
        if not result["success"]:
            raise ValueError(str(result["error_message"]))
        await self.registry.register(ref)

    async def _unload(self, name: str) -> None:
        lora_id = await self.registry.unregister(name)
        await self.registry.wait_for_unload(lora_id)
        await self._control("unload_lora", {"lora_id": lora_id})

    def _check_enabled(self, name: str) -> None:
        if not self._args.enable_lora:
            raise ValueError(
                f"LoRA adapter {name!r} was requested, but LoRA is not enabled; start the engine "
                "with --enable-lora or --lora-paths."
            )

    async def _replied(self, change: Awaitable[None]) -> dict[str, Any]:
        async with self._changes:
            try:
                await change
            except ValueError as error:
                return self._reply(str(error))
        return self._reply()

    async def _to_its_end(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Even if the caller is gone: both processes have to know the same adapters."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    def _reply(self, error: str | None = None) -> dict[str, Any]:
        return {
            "success": error is None,
            "error_message": error,
            "loaded_adapters": dict(sorted(self.paths.items())),
        }
