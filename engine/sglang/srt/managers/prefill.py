"""Plans prefill batches: which prompts, or which chunk of one, the next step computes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain

from sglang.srt.core.batch import ScheduleBatch
from sglang.srt.core.config import ScheduleConfig
from sglang.srt.core.request import Req, RequestState
from sglang.srt.managers.batch_layout import prefill_batch
from sglang.srt.managers.schedule_policy import SchedulePolicy
from sglang.srt.managers.waiting_queue import WaitingQueue
from sglang.srt.mem_cache.radix_cache import RadixCache
from sglang.srt.mem_cache.radix_key import RadixKey, whole_pages
from sglang.srt.mem_cache.request_memory import RequestMemory, key_of

# A long allowed answer reserves no more than this: most answers end earlier.
MAX_RESERVED_NEW_TOKENS = 4096
# Prompts that share so many uncached tokens are not computed side by side.
MIN_SHARED_IN_BATCH = 32


def reserved_new_tokens(req: Req) -> int:
    return min(req.max_new_tokens - len(req.output_ids), MAX_RESERVED_NEW_TOKENS)


@dataclass
class PrefillBudget:
    """What one batch may still take, in tokens."""

    room: int  # of the pool, without what running answers are expected to need
    memory: int  # of the pool, now
    input: int
    chunk: int | None  # None: prompts are not cut

    def leave(self, num_tokens: int, memory: int) -> None:
        """For somebody else in the same pass."""
        self.room -= memory
        self.memory -= memory
        self.input -= num_tokens
        if self.chunk is not None:
            self.chunk -= num_tokens

    def lock(self, num_tokens: int) -> None:
        self.room -= num_tokens
        self.memory -= num_tokens

    def take(self, extend: int, reserve: int) -> None:
        self.room -= extend + reserve
        self.memory -= extend
        self.input -= extend
        if self.chunk is not None:
            self.chunk -= extend


@dataclass
class _Draft:
    """A batch in the making."""

    budget: PrefillBudget
    reqs: list[Req] = field(default_factory=list)
    new_lens: list[int] = field(default_factory=list)

    def add(self, req: Req, new_len: int) -> None:
        self.reqs.append(req)
        self.new_lens.append(new_len)


class _DraftedPrefixes:
    """A tree of the prompts in one batch: a prompt is compared with all of them at once."""

    def __init__(self, page_size: int) -> None:
        self._tree = RadixCache.create_simulated(page_size=page_size)
        self._num_planted = 0

    def common_len(self, key: RadixKey, drafted: list[Req]) -> int:
        """The longest beginning, in whole pages, that the key shares with a drafted prompt.

        `drafted` only grows from call to call.
        """
        for req in drafted[self._num_planted :]:
            self._tree.insert(RadixKey(req.fill_ids, req.extra_key, req.adapter))
        self._num_planted = len(drafted)
        return len(self._tree.match_prefix(key).device_indices)


class PrefillPlanner:
    """Continuous batching with chunked prefill. At most one prompt is in chunks at a time.

    The chunked request belongs to the planner until its last chunk is planned; it is in neither
    the waiting queue nor the running batch.
    """

    def __init__(
        self,
        config: ScheduleConfig,
        memory: RequestMemory,
        policy: SchedulePolicy,
        fits_beside: Callable[[Req, Iterable[Req]], bool] = lambda req, others: True,
    ) -> None:
        """`fits_beside` tells whether one pass can compute a request with others."""
        self._fits_beside = fits_beside
        self._config = config
        self._memory = memory
        self._policy = policy
        self.chunked: Req | None = None
        self.joining: list[Req] = []  # whose prompt a pass completes; its result is not known yet
        self.blocked: Req | None = None  # the first one that the last batch had no room for

    def plan(
        self, waiting: WaitingQueue, running: list[Req], new_token_ratio: float, num_mixed: int = 0
    ) -> ScheduleBatch | None:
        """The next prefill batch, with its memory allocated; None when nothing can be admitted.

        `num_mixed` running requests are to get a token in the same pass.
        """
        self.blocked = None
        if self.chunked is None and not waiting:
            return None
        running = running + self.joining
        draft = _Draft(self._budget(running, new_token_ratio))
        draft.budget.leave(num_mixed, num_mixed * self._memory.page_size)
        if self.chunked is not None:
            self._add_chunk(self.chunked, draft)
        if self.chunked is None:
            self._admit(waiting, running, draft)
        if not draft.reqs:
            return None
        slots = self._memory.extend(draft.reqs, draft.new_lens)
        batch = prefill_batch(draft.reqs, draft.new_lens, slots)
        batch.kv_copies = self._memory.take_kv_copies()
        final = zip(draft.reqs, batch.layout.is_final, strict=True)
        self.joining += [req for req, is_final in final if is_final]
        return batch

    def retract_chunked(self) -> list[Req]:
        """Takes the request in chunks out of memory, if there is one; it will be admitted anew."""
        if self.chunked is None:
            return []
        req, self.chunked = self.chunked, None
        self._memory.release(req)
        self._memory.look_up(req)
        req.num_retractions += 1
        req.input_logprobs = None  # its prompt is computed anew
        req.state = RequestState.WAITING
        return [req]

    def joined(self, req: Req) -> None:
        """The pass that completed its prompt is known."""
        self.joining.remove(req)

    def _budget(self, running: list[Req], new_token_ratio: float) -> PrefillBudget:
        memory = self._memory.room()
        expected = sum(reserved_new_tokens(req) for req in running) * new_token_ratio
        return PrefillBudget(
            room=memory - int(expected),
            memory=self._memory.room_now([self.chunked] if self.chunked else []),
            input=self._config.max_prefill_tokens,
            chunk=self._config.chunked_prefill_size,
        )

    def _admit(self, waiting: WaitingQueue, running: list[Req], draft: _Draft) -> None:
        limit = self._config.max_running_requests - len(running)
        self._policy.calc_priority(waiting.reqs, running)
        computed = list(self.joining)  # by passes whose results are not known yet
        drafted = _DraftedPrefixes(self._memory.page_size)
        for req in list(waiting):
            if self.chunked is not None:
                return
            if len(draft.reqs) >= limit:
                self.blocked = req
                return
            others = chain(running, draft.reqs)
            if self._memory.is_prefetching(req) or not self._fits_beside(req, others):
                continue
            self._attach_prefix(req, draft.budget)
            waits = self._gains_by_waiting(req, computed + draft.reqs, drafted)
            if waits or not self._add(req, draft, alone=not (running or draft.reqs)):
                self._memory.detach_prefix(req)
                if waits:
                    continue
                self.blocked = req
                return
            waiting.remove(req)
            req.state = RequestState.RUNNING
            if req.num_retractions == 0:
                req.cached_tokens = req.kv_committed_len

    def _attach_prefix(self, req: Req, budget: PrefillBudget) -> None:
        """What the lock takes out of what can be evicted is no room any more."""
        before = self._memory.room()
        self._memory.attach_prefix(req, quota=budget.room)
        budget.lock(before - self._memory.room())

    def _gains_by_waiting(self, req: Req, reqs: list[Req], drafted: _DraftedPrefixes) -> bool:
        """Whether the batch computes much of this prompt already: a step later it is cached.

        What is cached of such a prompt is locked by the batch, so leaving it out costs no room.
        """
        if not (reqs and self._memory.shares_prefixes):
            return False
        gained = drafted.common_len(key_of(req), reqs) - req.kv_committed_len
        return gained >= MIN_SHARED_IN_BATCH

    def _add(self, req: Req, draft: _Draft, *, alone: bool) -> bool:
        """Adds the whole prompt or its first chunk, if it fits."""
        budget = draft.budget
        new_len = req.seq_len - req.kv_committed_len
        extend = self._memory.new_page_tokens(req.kv_committed_len, req.seq_len)
        reserve = reserved_new_tokens(req) + self._memory.page_size
        # Alone, a request may use the whole pool: nothing will ever make more room for it.
        if not alone and extend + reserve >= budget.room:
            return False
        if budget.chunk is not None and new_len > budget.chunk:
            return self._start_chunks(req, draft)
        if extend > budget.memory or (draft.reqs and extend > budget.input):
            return False
        budget.take(extend, reserve)
        draft.add(req, new_len)
        return True

    def _start_chunks(self, req: Req, draft: _Draft) -> bool:
        length = self._chunk_len(draft.budget)
        if length <= 0:
            return False
        self.chunked = req
        draft.budget.take(length, 0)
        draft.add(req, length)
        return True

    def _add_chunk(self, req: Req, draft: _Draft) -> None:
        """The next chunk of the request in chunks; none when the pool has no room for it now."""
        left = req.seq_len - req.kv_committed_len
        length = min(left, self._chunk_len(draft.budget))
        if length <= 0:
            return
        if length == left:
            self.chunked = None
        extend = self._memory.new_page_tokens(req.kv_committed_len, req.kv_committed_len + length)
        draft.budget.take(extend, 0 if self.chunked else reserved_new_tokens(req))
        draft.add(req, length)

    def _chunk_len(self, budget: PrefillBudget) -> int:
        """Whole pages, so that the next chunk starts with a page."""
        assert budget.chunk is not None, "a prompt is in chunks though chunks are off"
        return whole_pages(min(budget.chunk, budget.memory), self._memory.page_size)
