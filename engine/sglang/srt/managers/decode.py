"""The running batch: one more token for every request in it, as long as the pool has room."""

from dataclasses import dataclass, field

from sglang.srt.core.batch import ForwardMode, ScheduleBatch
from sglang.srt.core.request import Req
from sglang.srt.managers.new_token_ratio import NewTokenRatio
from sglang.srt.mem_cache.request_memory import RequestMemory


@dataclass
class DecodePlan:
    """The next decode batch, and who had to leave so that it fits."""

    batch: ScheduleBatch | None = None
    retracted: list[Req] = field(default_factory=list)  # without memory; they will come again
    out_of_memory: Req | None = None  # the pool is too small for this one alone; holds its memory


class RunningBatch:
    """Requests whose prompt is computed and whose answer is not finished."""

    def __init__(self, memory: RequestMemory, ratio: NewTokenRatio) -> None:
        self.reqs: list[Req] = []
        self._memory = memory
        self._ratio = ratio

    def add(self, req: Req) -> None:
        self.reqs.append(req)

    def remove(self, req: Req) -> None:
        self.reqs.remove(req)

    def plan(self, *, others_hold_memory: bool) -> DecodePlan:
        """Allocates the next slots; retracts the least advanced requests until they fit.

        With `others_hold_memory` even the last request is retracted: it will fit once they ended.
        """
        plan = DecodePlan()
        while self.reqs and not self._memory.can_decode(self.reqs):
            if len(self.reqs) == 1 and not others_hold_memory:
                plan.out_of_memory = self.reqs.pop()
                break
            plan.retracted.append(self._retract())
        if plan.retracted:
            self._ratio.raise_after_retraction(self.reqs)
        else:
            self._ratio.decay()
        if self.reqs:
            plan.batch = ScheduleBatch(
                reqs=list(self.reqs),
                forward_mode=ForwardMode.DECODE,
                out_cache_loc=self._memory.decode(self.reqs),
                kv_copies=self._memory.take_kv_copies(),
            )
        return plan

    def _retract(self) -> Req:
        """Whoever lost least: fewest output tokens, then the longest prompt."""
        victim = min(self.reqs, key=lambda req: (len(req.output_ids), -len(req.origin_input_ids)))
        self.reqs.remove(victim)
        # NOTE: without insertion: what is kept in the cache would have to be evicted right away.
        self._memory.release(victim, keep=False)
        self._memory.look_up(victim)
        victim.num_retractions += 1
        return victim
