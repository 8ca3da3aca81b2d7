"""Operations on the storage below the prefix cache, while the scheduler runs."""

from collections.abc import Mapping

from sglang.srt.managers.control import Operation
from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache
from sglang.srt.mem_cache.hiradix_cache import HiRadixCache

ATTACH_ARGS = (
    "hicache_storage_backend",
    "hicache_storage_backend_extra_config_json",
    "hicache_storage_prefetch_policy",
    "hicache_write_policy",
)


def hicache_operations(cache: BasePrefixCache) -> dict[str, Operation]:
    """By the names of the control rpc. Without a host tier each refuses."""

    def attach(args: Mapping[str, object]) -> dict[str, object]:
        tiers, texts = _tiers(cache), _texts(args)
        backend = texts["hicache_storage_backend"]
        if not backend:
            raise ValueError("hicache_storage_backend must be the name of a backend, such as file")
        success, message = tiers.attach_storage_backend(
            backend,
            texts["hicache_storage_backend_extra_config_json"],
            hicache_storage_prefetch_policy=texts["hicache_storage_prefetch_policy"],
            hicache_write_policy=texts["hicache_write_policy"],
        )
        return {"success": success, "message": message}

    def detach(args: Mapping[str, object]) -> dict[str, object]:
        success, message = _tiers(cache).detach_storage_backend()
        return {"success": success, "message": message}

    def status(args: Mapping[str, object]) -> dict[str, object]:
        return _tiers(cache).storage_status()

    def clear(args: Mapping[str, object]) -> dict[str, object]:
        success = _tiers(cache).clear_storage_backend()
        message = (
            "The storage is cleared."
            if success
            else "The storage was not cleared: no backend is attached, or it cannot."
        )
        return {"success": success, "message": message}

    return {
        "hicache_storage_attach": attach,
        "hicache_storage_detach": detach,
        "hicache_storage_status": status,
        "hicache_storage_clear": clear,
    }


def _tiers(cache: BasePrefixCache) -> HiRadixCache:
    if not isinstance(cache, HiRadixCache):
        raise ValueError(
            "This engine has no host tier; start it with --enable-hierarchical-cache first."
        )
    return cache


def _texts(args: Mapping[str, object]) -> dict[str, str | None]:
    for name, value in args.items():
        if name not in ATTACH_ARGS:
            raise ValueError(f"unknown argument {name!r}; allowed: {', '.join(ATTACH_ARGS)}")
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{name} must be text, got {value!r}")
    return {name: None if args.get(name) is None else str(args[name]) for name in ATTACH_ARGS}
