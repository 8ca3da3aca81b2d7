"""Which running requests give way to a waiting one that is more urgent."""

from collections.abc import Callable

from sglang.srt.core.request import Req
from sglang.srt.managers.decode import RunningBatch
from sglang.srt.managers.prefill import reserved_new_tokens
from sglang.srt.managers.priority import Priorities
from sglang.srt.mem_cache.request_memory import RequestMemory


class Preemption:
    """Counts room as the planner of prefill batches does."""

    def __init__(self, memory: RequestMemory, priorities: Priorities) -> None:
        self._memory = memory
        self._priorities = priorities

    def make_room(
        self, blocked: Req, running: RunningBatch, ratio: float, catch_up: Callable[[], None]
    ) -> list[Req]:
        """Takes running requests out of memory so that the blocked one fits; they wait again.

        Their KV stays in the cache as long as nobody needs the room.
        """
        if not self.victims(blocked, running.reqs, ratio):
            return []
        catch_up()  # which may end some of them, or all need of it
        victims = self.victims(blocked, running.reqs, ratio)
        for victim in victims:
            running.retract(victim, keep=True)
        return victims

    def victims(self, blocked: Req, running: list[Req], ratio: float) -> list[Req]:
        """As few as make room for the request, least urgent first; none if all are not enough."""
        candidates = self._priorities.preemptible_by(blocked, running)
        if not candidates:
            return []
        rows = self._memory.rows_left()
        room = self._memory.room() - int(sum(map(reserved_new_tokens, running)) * ratio)
        wanted = (
            self._memory.new_page_tokens(blocked.found_len, blocked.seq_len)
            + reserved_new_tokens(blocked)
            + self._memory.page_size
        )
        victims: list[Req] = []
        for victim in candidates:
            if rows >= 1 and room > wanted:
                break
            victims.append(victim)
            rows += 1
            # What others share of it stays locked: then the next step finds more victims.
            room += victim.kv_committed_len + int(reserved_new_tokens(victim) * ratio)
        return victims if rows >= 1 and room > wanted else []
