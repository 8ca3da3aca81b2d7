"""The administrative operations of a worker by name, with their arguments and results as JSON."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from sglang.srt.entrypoints.service import LOAD_SECTIONS, EngineService

Arguments = Mapping[str, Any]
Operation = Callable[[EngineService, Arguments], Awaitable[dict[str, Any]]]
MAX_WAIT = 3600  # seconds


# Operations that the scheduler runs itself, with the arguments of each.
OF_SCHEDULER: dict[str, tuple[str, ...]] = {
    "close_session": ("session_id",),
    "continue_generation": ("torch_empty_cache",),
    "hicache_storage_attach": (
        "hicache_storage_backend",
        "hicache_storage_backend_extra_config_json",
        "hicache_storage_prefetch_policy",
        "hicache_write_policy",
    ),
    "hicache_storage_clear": (),
    "hicache_storage_detach": (),
    "hicache_storage_status": (),
    "open_session": ("capacity_of_str_len", "session_id", "streaming", "timeout"),
    "pause_generation": ("mode",),
}


async def run_operation(service: EngineService, name: str, args: Arguments) -> dict[str, Any]:
    """The operation's result. ValueError says what is wrong and what is allowed."""
    if name in OF_SCHEDULER:
        _allow(args, *OF_SCHEDULER[name])
        # What is null is left to the scheduler.
        given = {key: value for key, value in args.items() if value is not None}
        return await service.client.control(name, given)
    operation = OPERATIONS.get(name)
    if operation is None:
        names = ", ".join(sorted([*OPERATIONS, *OF_SCHEDULER]))
        raise ValueError(f"unknown operation {name!r}; allowed: {names}")
    return await operation(service, args)


async def abort(service: EngineService, args: Arguments) -> dict[str, Any]:
    """Ends one request by its exact id, or all of them."""
    _allow(args, "rid", "all", "message")
    message = str(args.get("message", "Aborted by an administrator"))
    if args.get("all"):
        return {"aborted": service.client.abort_all(message)}
    rid = args.get("rid")
    if not isinstance(rid, str) or not rid:
        raise ValueError(f"rid must be the id of a request, or all must be true; got {rid!r}")
    return {"aborted": int(service.client.abort(rid, message))}


async def flush_cache(service: EngineService, args: Arguments) -> dict[str, Any]:
    """Empties the prefix cache, waiting up to `timeout_s` until no request runs."""
    _allow(args, "timeout_s")
    success, message = await service.flush_cache(_seconds("timeout_s", args.get("timeout_s", 0)))
    return {"success": success, "message": message}


async def load_lora_adapter(service: EngineService, args: Arguments) -> dict[str, Any]:
    """Requests may name the adapter from now on; whether they may is in `success`."""
    _allow(args, "lora_name", "lora_path", "pinned")
    pinned = args.get("pinned") or False
    if not isinstance(pinned, bool):
        raise ValueError(f"pinned must be true or false, got {pinned!r}")
    name, path = _text(args, "lora_name"), _text(args, "lora_path")
    return await service.adapters.load(name, path, pinned)


async def lora_adapters(service: EngineService, args: Arguments) -> dict[str, Any]:
    """The adapters that requests may name: path by name."""
    _allow(args)
    return {"loaded_adapters": service.adapters.paths}


async def loads(service: EngineService, args: Arguments) -> dict[str, Any]:
    """Load of the worker's one rank."""
    _allow(args, "include", "dp_rank")
    if args.get("dp_rank") not in (None, 0):
        raise ValueError(f"dp_rank must be 0, this worker has one rank; got {args['dp_rank']!r}")
    include = args.get("include", [])
    if not isinstance(include, list):
        raise ValueError(f"include must be a list of {', '.join(LOAD_SECTIONS)}; got {include!r}")
    return service.loads(include)


async def metrics(service: EngineService, args: Arguments) -> dict[str, Any]:
    """The engine's Prometheus text."""
    _allow(args)
    return {"text": service.metrics.text()}


async def model_info(service: EngineService, args: Arguments) -> dict[str, Any]:
    _allow(args)
    return service.model_info()


async def server_info(service: EngineService, args: Arguments) -> dict[str, Any]:
    _allow(args)
    return service.server_info()


async def unload_lora_adapter(service: EngineService, args: Arguments) -> dict[str, Any]:
    """Requests may not name the adapter any more; returns when none uses it."""
    _allow(args, "lora_name")
    return await service.adapters.unload(_text(args, "lora_name"))


OPERATIONS: dict[str, Operation] = {
    "abort": abort,
    "flush_cache": flush_cache,
    "load_lora_adapter": load_lora_adapter,
    "loads": loads,
    "lora_adapters": lora_adapters,
    "metrics": metrics,
    "model_info": model_info,
    "server_info": server_info,
    "unload_lora_adapter": unload_lora_adapter,
}


def _allow(args: Arguments, *names: str) -> None:
    for name in args:
        if name not in names:
            takes = f"takes {', '.join(names)}" if names else "takes no arguments"
            raise ValueError(f"unknown argument {name!r}; the operation {takes}")


def _text(args: Arguments, name: str) -> str:
    value = args.get(name)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be a text that is not empty, got {value!r}")
    return value


def _seconds(name: str, value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= MAX_WAIT:
        raise ValueError(f"{name} must be seconds, 0 … {MAX_WAIT}; got {value!r}")
    return float(value)
