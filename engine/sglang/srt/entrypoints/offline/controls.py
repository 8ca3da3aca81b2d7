"""The operations of an engine besides generating."""

from collections.abc import Mapping
from typing import Any

from sglang.srt.entrypoints.offline.worker import OfflineWorker

FLUSH_TIMEOUT = 0.0  # seconds; only an engine that rests is flushed


class EngineControls:
    """Each waits until the scheduler has done it. ValueError: it refused, and says why."""

    def __init__(self, worker: OfflineWorker) -> None:
        self._worker = worker

    @property
    def scheduler_pid(self) -> int:
        return self._worker.pid

    def flush_cache(self) -> dict[str, Any]:
        """Forgets every cached prefix: `{"success": bool, "message": str}`."""

        async def flush() -> dict[str, Any]:
            success, message = await self._worker.service.flush_cache(FLUSH_TIMEOUT)
            return {"success": success, "message": message}

        return self._worker.wait(flush())

    def get_server_info(self) -> dict[str, Any]:
        """The options as resolved, the scheduler's sizes and its live counters."""

        async def look() -> dict[str, Any]:
            return self._worker.service.server_info()

        return self._worker.wait(look())

    def get_model_info(self) -> dict[str, Any]:
        """The model card."""

        async def look() -> dict[str, Any]:
            return self._worker.service.model_info()

        return self._worker.wait(look())

    def abort_request(self, rid: str = "", abort_all: bool = False) -> None:
        """Ends a request by its id, or all; their callers get what there is, with finish reason
        `abort`. An id that is unknown may have just ended, and is no error.
        """
        if not (rid or abort_all):
            raise ValueError("rid must be the id of a request, or abort_all must be true")

        async def abort() -> None:
            if abort_all:
                self._worker.client.abort_all("Aborted by the caller")
            else:
                self._worker.client.abort(rid, "Aborted by the caller")

        self._worker.wait(abort())

    def _control(self, name: str, args: Mapping[str, object]) -> dict[str, Any]:
        return self._worker.wait(self._worker.client.control(name, dict(args)))
