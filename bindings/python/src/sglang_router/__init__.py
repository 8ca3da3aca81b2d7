"""Gateway and text library for Python. Names load on first use: the import itself is cheap."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang_router.router import Router as Router
    from sglang_router.router_args import RouterArgs as RouterArgs
    from sglang_router.sglang_router_rs import FrontDoor as FrontDoor
    from sglang_router.sglang_router_rs import PolicyType as PolicyType
    from sglang_router.sglang_router_rs import option_schema as option_schema
    from sglang_router.version import __version__ as __version__

_HOMES = {
    "FrontDoor": "sglang_router.sglang_router_rs",
    "PolicyType": "sglang_router.sglang_router_rs",
    "Router": "sglang_router.router",
    "RouterArgs": "sglang_router.router_args",
    "__version__": "sglang_router.version",
    "option_schema": "sglang_router.sglang_router_rs",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
