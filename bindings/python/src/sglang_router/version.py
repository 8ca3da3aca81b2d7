"""The version, which is that of the compiled crate."""

from sglang_router.sglang_router_rs import get_verbose_version_string, get_version_string

__version__ = get_version_string()

__all__ = ["__version__", "get_verbose_version_string", "get_version_string"]
