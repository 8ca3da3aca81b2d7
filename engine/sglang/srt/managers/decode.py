"""The running batch: one more token for every request in it, as long as the pool has room."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sglang.srt.core.batch import ScheduleBatch
from sglang.srt.core.request import Req, RequestState
from sglang.srt.managers.batch_layout import decode_batch
from sglang.srt.managers.new_token_ratio import NewTokenRatio
from sglang.srt.mem_cache.request_memory import RequestMemory


def least_lost(req: Req) -> tuple[int, int]:
    """Fewest output tokens first, then the longest prompt: the order of victims by `length`."""
    return len(req.output_ids), -len(req.origin_input_ids)


def victim_key(policy: str, urgency: Callable[[Req], int]) -> Callable[[Req], Any]:
    """The order in which requests are retracted; who has the smallest key goes first."""
    if policy == "priority":
        return lambda req: (urgency(req), *least_lost(req))
    return least_lost


@dataclass
class DecodePlan:
    """The next decode batch, and who had to leave so that it fits."""

    batch: ScheduleBatch | None = None
    retracted: list[Req] = field(default_factory=list)  # without memory; they will come again
    out_of_memory: Req | None = None  # the pool is too small for this one alone; holds its memory


class RunningBatch:
    """Requests whose prompt is computed and whose answer is not finished."""

    def __init__(
        self,
        memory: RequestMemory,
        ratio: NewTokenRatio,
        victim_key: Callable[[Req], Any] = least_lost,
    ) -> None:
        """Who has the smallest key is retracted first."""
        self.reqs: list[Req] = []
        self._memory = memory
        self._ratio = ratio
        self._victim_key = victim_key

    def add(self, req: Req) -> None:
        self.reqs.append(req)

    def remove(self, req: Req) -> None:
        self.reqs.remove(req)

    def growing(self) -> list[Req]:
        """Without those whose last token is being computed."""
        return [
            req
            for req in self.reqs
            if len(req.output_ids) + req.kv_pending_len < req.max_new_tokens
        ]

    def riders(self, chunk: int | None) -> list[Req]:
        """Those that may get their token in a pass that computes prompts: all or nobody.

        They leave at least half of the chunk, and a page, to the prompts, and want no logprobs.
        """
        reqs = self.growing()
        if chunk is not None and chunk - len(reqs) < max(chunk // 2, self._memory.page_size):
            return []
        is_plain = not any(req.return_logprob for req in reqs)
        return reqs if is_plain and self._memory.can_decode(reqs) else []

    def fits(self) -> bool:
        """Whether one more token of each has room."""
        return self._memory.can_decode(self.growing())

    def batch(self) -> ScheduleBatch | None:
        """The next step of all, which must fit."""
        reqs = self.growing()
        if not reqs:
            return None
        self._ratio.decay()
        batch = decode_batch(reqs, self._memory.decode(reqs))
        batch.kv_copies = self._memory.take_kv_copies()
        return batch

    def plan(self, *, others_hold_memory: bool) -> DecodePlan:
        """Allocates the next slots; retracts requests until they fit.

        With `others_hold_memory` even the last request is retracted: it will fit once they ended.
        A retraction needs the results of all passes.
        """
        plan = DecodePlan()
        while self.reqs and not self.fits():
            if len(self.reqs) == 1 and not others_hold_memory:
                plan.out_of_memory = self.reqs.pop()
                break
            victim = min(self.reqs, key=self._victim_key)
            # What is kept in the cache would have to be evicted right away.
            self.retract(victim, keep=False)
            plan.retracted.append(victim)
        plan.batch = self.batch()
        if plan.retracted:
            self._ratio.raise_after_retraction(self.reqs)
        return plan

    def retract(self, req: Req, *, keep: bool) -> None:
        """Out of the batch and out of memory; its answer goes on when it is admitted again."""
        assert not req.kv_pending_len, f"{req.rid} is being computed"
        self.reqs.remove(req)
        self._memory.release(req, keep=keep)
        self._memory.look_up(req)
        req.num_retractions += 1
        req.state = RequestState.WAITING

    def retract_all(self) -> list[Req]:
        """Everybody gives back memory and waits; their KV stays in the cache."""
        reqs = list(self.reqs)
        for req in reqs:
            self.retract(req, keep=True)
        return reqs
