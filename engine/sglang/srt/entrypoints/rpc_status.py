"""How rpcs that ask the scheduler end when there is no answer, and until when they may ask."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from sglang.srt.entrypoints import wire
from sglang.srt.entrypoints.answer_inputs import InvalidRequest
from sglang.srt.entrypoints.open_streams import DuplicateRequest
from sglang.srt.entrypoints.refused import RefusedRequest
from sglang.srt.entrypoints.scheduler_client import QueueFull, SchedulerUnavailable

Code = grpc.StatusCode


@asynccontextmanager
async def errors_as_status(context: Any) -> AsyncIterator[None]:
    """The one table of errors of requests; `context` is that of the rpc, which they end."""
    try:
        yield
    except InvalidRequest as error:
        await wire.abort(context, Code.INVALID_ARGUMENT, str(error))
    except DuplicateRequest as error:
        await wire.abort(context, Code.ALREADY_EXISTS, str(error))
    except QueueFull as error:
        await wire.abort(context, Code.RESOURCE_EXHAUSTED, str(error))
    except SchedulerUnavailable as error:
        await wire.abort(context, Code.UNAVAILABLE, str(error))
    except RefusedRequest as error:
        await wire.abort(context, error.code, str(error))


def deadline_of(context: Any) -> float | None:
    """On the clock of time.monotonic(); None: the caller set none."""
    remaining = context.time_remaining()
    return None if remaining is None else time.monotonic() + remaining
