"""Every request that is not finished, and the one place where each of them is."""

from collections.abc import Iterator

from sglang.srt.core.messages import FinishReason
from sglang.srt.core.request import Req, RequestState
from sglang.srt.managers.decode import RunningBatch
from sglang.srt.managers.prefill import PrefillPlanner
from sglang.srt.managers.waiting_queue import WaitingQueue
from sglang.srt.mem_cache.request_memory import RequestMemory


class LiveRequests:
    """A request is in the waiting queue (no memory), in chunks, or in the running batch."""

    def __init__(
        self,
        memory: RequestMemory,
        waiting: WaitingQueue,
        prefill: PrefillPlanner,
        running: RunningBatch,
    ) -> None:
        self._memory = memory
        self._waiting = waiting
        self._prefill = prefill
        self._running = running
        self._by_rid: dict[str, Req] = {}

    def add(self, req: Req) -> None:
        self._by_rid[req.rid] = req
        self._memory.look_up(req)
        self._waiting.add(req)

    def get(self, rid: str) -> Req | None:
        return self._by_rid.get(rid)

    def take_out(self, req: Req) -> None:
        """Out of its place, between two steps. `end` must follow."""
        if req.state is RequestState.WAITING:
            self._waiting.remove(req)
        elif req is self._prefill.chunked:
            self._prefill.chunked = None
        else:
            self._running.remove(req)

    def end(self, req: Req, reason: FinishReason) -> None:
        """Gives back the memory of a request that is in no place any more."""
        req.finished_reason = reason
        if req.state is RequestState.RUNNING:
            # What a broken pass has written must not reach anybody else.
            self._memory.release(req, keep=reason.status_code != 500)
        req.state = RequestState.FINISHED
        del self._by_rid[req.rid]

    def expired(self, now: float) -> list[Req]:
        return [req for req in self if req.deadline is not None and now >= req.deadline]

    def holders(self) -> list[Req]:
        """Those that have memory."""
        return [req for req in self if req.state is RequestState.RUNNING]

    @property
    def num_running(self) -> int:
        return len(self._by_rid) - len(self._waiting)

    def __len__(self) -> int:
        return len(self._by_rid)

    def __iter__(self) -> Iterator[Req]:
        return iter(list(self._by_rid.values()))

    def __contains__(self, rid: str) -> bool:
        return rid in self._by_rid
