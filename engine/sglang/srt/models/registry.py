"""Model classes by architecture name; external packages add theirs here."""

import importlib
import logging
import pkgutil
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sglang.extension.registry import Registry, source_of
from sglang.srt.environ import envs

logger = logging.getLogger(__name__)

_BUILT_IN_PACKAGE = "sglang.srt.models"


class _ModelRegistry:
    """Architecture name → class. The built-in models are read when first asked for."""

    def __init__(self) -> None:
        self.models: Registry[type[Any]] = Registry("model architecture")
        self._discovered = False

    def register(self, package_name: str, overwrite: bool = False, strict: bool = False) -> None:
        """Adds the `EntryClass` of every module of a package.

        A name that another package has is a ValueError unless `overwrite`. With `strict` a module
        that cannot be imported raises; else it is logged and left out.
        """
        for name, cls in import_model_classes(package_name, strict).items():
            if name in self.models and self.models[name] is cls:
                continue
            self.models.register(name, cls, source=source_of(cls), replace=overwrite)

    def get_supported_archs(self) -> list[str]:
        self._discover()
        return self.models.names()

    def resolve_model_cls(self, architectures: str | Sequence[str]) -> tuple[type[Any], str]:
        """The class and the name of the first architecture that is supported."""
        names = [architectures] if isinstance(architectures, str) else list(architectures)
        self._discover()
        for name in names:
            if name in self.models:
                return self.models[name], name
        raise ValueError(
            f"Model architectures {names} are not supported for now. "
            f"Supported architectures: {', '.join(self.get_supported_archs())}"
        )

    def _discover(self) -> None:
        if self._discovered:
            return
        self._discovered = True
        self.register(_BUILT_IN_PACKAGE)
        external = envs.SGLANG_EXTERNAL_MODEL_PACKAGE.get()
        if external:
            self.register(external, overwrite=True)


@lru_cache
def import_model_classes(package_name: str, strict: bool = False) -> dict[str, type[Any]]:
    """Architecture name → class of all modules of a package that set `EntryClass`."""
    found: dict[str, type[Any]] = {}
    disabled = envs.SGLANG_DISABLED_MODEL_ARCHS.get()
    package = importlib.import_module(package_name)
    for _, name, is_package in pkgutil.iter_modules(package.__path__, f"{package_name}."):
        if is_package or name.rsplit(".", 1)[-1] in disabled:
            continue
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            if strict:
                raise
            logger.warning("Ignore import error when loading %s: %s", name, error)
            continue
        entry = getattr(module, "EntryClass", [])
        for cls in entry if isinstance(entry, (list, tuple)) else [entry]:
            assert cls.__name__ not in found, f"Duplicated model implementation for {cls.__name__}"
            found[cls.__name__] = cls
    return found


ModelRegistry = _ModelRegistry()
