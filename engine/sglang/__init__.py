"""An engine for language models. Importing it is cheap; what is heavy is imported when used."""

from typing import Any

__all__ = ["__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from sglang.version import __version__

        return __version__
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
