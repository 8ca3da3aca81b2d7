"""The version of the installed engine."""

from importlib import metadata

SOURCE_VERSION = "1.0.0"


def _installed_version() -> str:
    try:
        return metadata.version("sglang")
    except metadata.PackageNotFoundError:  # run from a source tree
        return SOURCE_VERSION


__version__ = _installed_version()
