"""Storage backends by name."""

import importlib
import logging
from typing import Any

from sglang.srt.arg_groups.hicache import check_storage_name
from sglang.srt.extension_points import HICACHE_STORAGE_BACKENDS
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, HiCacheStorageConfig
from sglang.srt.mem_cache.memory_pool_host import HostKVPool

logger = logging.getLogger(__name__)

_DYNAMIC_FIELDS = ("backend_name", "module_path", "class_name")


class StorageBackendFactory:
    """The names that `--hicache-storage-backend` takes."""

    @classmethod
    def register_backend(cls, name: str, module_path: str, class_name: str) -> None:
        """The module is imported when the backend is used. A taken name is replaced, with a
        warning.
        """
        target = f"{module_path}:{class_name}"
        HICACHE_STORAGE_BACKENDS.register_lazy(name, target, replace=True)

    @classmethod
    def create_backend(
        cls,
        backend_name: str,
        storage_config: HiCacheStorageConfig,
        mem_pool_host: HostKVPool,
        **kwargs: Any,
    ) -> HiCacheStorage:
        """The backend, attached to the pool. ValueError says what is wrong with the name or the
        settings. `kwargs` are added to the settings.
        """
        check_storage_name(backend_name)
        settings = {**(storage_config.extra_config or {}), **kwargs}
        try:
            factory = HICACHE_STORAGE_BACKENDS[backend_name]
            storage = factory(storage_config, settings)
        except ValueError:
            raise
        except Exception as error:
            raise _cannot_be_made(backend_name, error) from error
        if not isinstance(storage, HiCacheStorage):
            raise ValueError(
                f"The storage backend {backend_name!r} is a {type(storage).__name__}; it must be "
                "a subclass of sglang.srt.mem_cache.hicache_storage.HiCacheStorage"
            )
        try:
            storage.register_mem_pool_host(mem_pool_host)
            storage.attach()
        except Exception as error:
            raise _cannot_be_made(backend_name, error) from error
        return storage


def _cannot_be_made(backend_name: str, error: Exception) -> ValueError:
    return ValueError(
        f"The storage backend {backend_name!r} cannot be made: {type(error).__name__}: {error}"
    )


def make_dynamic_storage(
    storage_config: HiCacheStorageConfig, settings: dict[str, Any]
) -> HiCacheStorage:
    """The class that the settings name by module, for backends that nobody has registered."""
    missing = [name for name in _DYNAMIC_FIELDS if not isinstance(settings.get(name), str)]
    if missing:
        raise ValueError(
            "The storage backend `dynamic` needs texts for "
            f"{', '.join(_DYNAMIC_FIELDS)} in its extra config; missing: {', '.join(missing)}"
        )
    module = importlib.import_module(settings["module_path"])
    backend: HiCacheStorage = getattr(module, settings["class_name"])(storage_config, settings)
    return backend
