"""Administrative operations of the scheduler, by name."""

from collections.abc import Callable, Mapping

from sglang.srt.core.messages import ControlInput, ControlOutput
from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache

Operation = Callable[[Mapping[str, object]], dict[str, object]]


def start_kv_events(cache: BasePrefixCache) -> Operation:
    """From the first call on, steps report what the cache stores and drops."""

    def start(args: Mapping[str, object]) -> dict[str, object]:
        cache.start_kv_events()
        return {}

    return start


class ControlTable:
    """Name → operation. An operation raises ValueError to refuse; the text reaches the caller."""

    def __init__(self, operations: Mapping[str, Operation]) -> None:
        self._operations = dict(operations)

    def run(self, request: ControlInput) -> ControlOutput:
        operation = self._operations.get(request.name)
        if operation is None:
            known = ", ".join(sorted(self._operations))
            error = f"unknown scheduler operation {request.name!r}; allowed: {known}"
            return ControlOutput(id=request.id, error=error)
        try:
            return ControlOutput(id=request.id, result=operation(request.args))
        except ValueError as error:
            return ControlOutput(id=request.id, error=str(error))
