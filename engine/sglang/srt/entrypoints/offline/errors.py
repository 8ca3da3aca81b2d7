"""What an engine in the caller's process raises besides ValueError."""

from collections.abc import Iterator
from contextlib import contextmanager

from sglang.srt.core.messages import FinishReason
from sglang.srt.entrypoints.open_streams import DuplicateRequest
from sglang.srt.entrypoints.scheduler_client import QueueFull, SchedulerUnavailable

CALLERS_FAULT = range(400, 500)  # statuses


class EngineError(RuntimeError):
    """The engine cannot do it: its scheduler is gone, it was shut down, or it has no room."""


@contextmanager
def callers_errors() -> Iterator[None]:
    """Inside, what the scheduler's client raises becomes what a caller of the engine gets."""
    try:
        yield
    except DuplicateRequest as error:
        raise ValueError(str(error)) from None
    except (QueueFull, SchedulerUnavailable) as error:
        raise EngineError(str(error)) from None


def raise_refusal(finish: FinishReason | None) -> None:
    """Raises if the scheduler ended a request with a status: ValueError for the caller's fault."""
    if finish is None or finish.type != "abort" or finish.status_code is None:
        return
    message = finish.message or "the request was aborted"
    if finish.status_code in CALLERS_FAULT:
        raise ValueError(message)
    raise EngineError(message)
