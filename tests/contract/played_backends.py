"""Entry points and serve backends that tests play."""

from types import SimpleNamespace
from typing import Any

from sglang.cli.serve_backends import ServeBackend, ServeBackendDetection, ServeRequest

MATCH, NO_MATCH = ServeBackendDetection.MATCH, ServeBackendDetection.NO_MATCH
UNKNOWN = ServeBackendDetection.UNKNOWN


def entry_of(name: str, factory: Any, distribution: str = "plugin") -> Any:
    return SimpleNamespace(name=name, load=lambda: factory, dist=SimpleNamespace(name=distribution))


def always(answer: Any) -> ServeBackend:
    """A backend whose detector gives that answer, or raises it."""

    def detect(request: ServeRequest) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ServeBackend(1, lambda request: None, detect)
