"""Every request that is not finished, and the one place where each of them is."""

from collections.abc import Iterator

from sglang.srt.constrained.base_grammar_backend import InvalidGrammarObject
from sglang.srt.constrained.grammar_manager import GrammarManager
from sglang.srt.core.messages import FinishReason
from sglang.srt.core.request import Req, RequestState
from sglang.srt.managers.decode import RunningBatch
from sglang.srt.managers.prefill import PrefillPlanner
from sglang.srt.managers.waiting_queue import WaitingQueue
from sglang.srt.mem_cache.request_memory import RequestMemory

EXPIRED = FinishReason(
    type="abort", message="The request did not end before its deadline.", status_code=504
)


def waited_too_long(seconds: float) -> FinishReason:
    message = f"request waiting timeout: it did not begin within {seconds:g} s; try again later"
    return FinishReason(type="abort", message=message, status_code=503)


class LiveRequests:
    """A request is parked until its grammar is compiled, in the waiting queue (both without
    memory), in chunks, or in the running batch.
    """

    def __init__(
        self,
        memory: RequestMemory,
        waiting: WaitingQueue,
        prefill: PrefillPlanner,
        running: RunningBatch,
        grammars: GrammarManager,
    ) -> None:
        self._memory = memory
        self._waiting = waiting
        self._prefill = prefill
        self._running = running
        self._grammars = grammars
        self._by_rid: dict[str, Req] = {}

    def add(self, req: Req) -> None:
        self._by_rid[req.rid] = req
        if self._grammars.process_req_with_grammar(req):
            req.state = RequestState.COMPILING
        else:
            self._queue(req)

    def take_compiled(self) -> list[Req]:
        """Parked requests whose grammar is known now begin to wait; those without a valid one
        are returned, and have to end.
        """
        nothing_else = len(self._grammars) == len(self._by_rid)
        ready = self._grammars.get_ready_grammar_requests(may_wait=nothing_else)
        for req in ready:
            self._queue(req)
        return [req for req in ready if isinstance(req.grammar, InvalidGrammarObject)]

    def get(self, rid: str) -> Req | None:
        return self._by_rid.get(rid)

    def take_out(self, req: Req) -> None:
        """Out of its place, between two steps. `end` must follow."""
        if req.state is RequestState.COMPILING:
            self._grammars.abort_request(req)
        elif req.state is RequestState.WAITING:
            self._waiting.remove(req)
        elif req is self._prefill.chunked:
            self._prefill.chunked = None
        else:
            self._running.remove(req)

    def end(self, req: Req, reason: FinishReason) -> None:
        """Gives back the memory of a request that is in no place any more."""
        req.finished_reason = reason
        self._memory.host_tier.end_prefetch(req.rid)
        if req.state is RequestState.RUNNING:
            # What a broken pass has written must not reach anybody else.
            self._memory.release(req, keep=reason.status_code != 500)
        req.state = RequestState.FINISHED
        del self._by_rid[req.rid]

    def late(self, now: float, waiting_timeout: float | None) -> list[tuple[Req, FinishReason]]:
        """Those that have to end, and why: by their deadline, or because they have waited too long
        for their first pass.
        """
        late = [(req, EXPIRED) for req in self if req.deadline is not None and now >= req.deadline]
        if waiting_timeout is not None:
            for req in self._not_begun():
                if now - req.times.received >= waiting_timeout:
                    late.append((req, waited_too_long(waiting_timeout)))
        return late

    def next_deadline(self, waiting_timeout: float | None) -> float | None:
        """The first moment at which `late` may find one; None: never."""
        moments = [req.deadline for req in self if req.deadline is not None]
        if waiting_timeout is not None:
            moments += [req.times.received + waiting_timeout for req in self._not_begun()]
        return min(moments, default=None)

    def holders(self) -> list[Req]:
        """Those that have memory."""
        return [req for req in self if req.state is RequestState.RUNNING]

    @property
    def num_running(self) -> int:
        return len(self._by_rid) - self.num_waiting

    @property
    def num_waiting(self) -> int:
        """In the queue, or parked before it."""
        return len(self._waiting) + len(self._grammars)

    @property
    def has_room(self) -> bool:
        """Whether one more may wait here."""
        return self._waiting.has_room_beside(len(self._grammars))

    def can_compile_for(self, req: Req) -> bool:
        """Whether its constraint may be compiled beside those that are."""
        return self._grammars.can_take(req.sampling_params)

    def _not_begun(self) -> list[Req]:
        """Those that wait for their first pass."""
        waiting = (*self._waiting, *self._grammars.grammar_queue)
        return [req for req in waiting if not req.num_retractions]

    def _queue(self, req: Req) -> None:
        req.state = RequestState.WAITING
        self._memory.look_up(req)
        self._waiting.add(req)

    def __len__(self) -> int:
        return len(self._by_rid)

    def __iter__(self) -> Iterator[Req]:
        return iter(list(self._by_rid.values()))

    def __contains__(self, rid: str) -> bool:
        return rid in self._by_rid
