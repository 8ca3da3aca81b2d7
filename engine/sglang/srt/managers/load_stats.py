"""Counts what the scheduler did, and says how loaded it is."""

from collections.abc import Callable

from sglang.srt.core.messages import LoadSnapshot
from sglang.srt.core.request import Req
from sglang.srt.mem_cache.request_memory import RequestMemory

THROUGHPUT_WINDOW = 1.0  # seconds


class LoadStats:
    """Counters since the start, or since `reset`."""

    def __init__(self, memory: RequestMemory, clock: Callable[[], float]) -> None:
        self._memory = memory
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        self._counts = LoadSnapshot()
        self._window_start = self._clock()
        self._window_tokens = 0
        self._throughput = 0.0

    def received(self) -> None:
        self._counts.num_requests_total += 1

    def prefilled(self, req: Req) -> None:
        """Once per request: a prompt that is computed again after retraction counts no more."""
        if req.num_retractions == 0:
            self._counts.prompt_tokens_total += len(req.origin_input_ids)
            self._counts.cached_tokens_total += req.cached_tokens

    def stepped(self, num_new_tokens: int) -> None:
        self._counts.num_steps += 1
        self._counts.generation_tokens_total += num_new_tokens
        self._window_tokens += num_new_tokens
        elapsed = self._clock() - self._window_start
        if elapsed >= THROUGHPUT_WINDOW:
            self._throughput = self._window_tokens / elapsed
            self._window_start, self._window_tokens = self._clock(), 0

    def idled(self) -> None:
        """No work is no throughput, and the next window starts with work."""
        self._throughput = 0.0
        self._window_start, self._window_tokens = self._clock(), 0

    def aborted(self) -> None:
        self._counts.num_aborted_requests_total += 1

    def retracted(self, num_reqs: int) -> None:
        self._counts.num_retracted_requests_total += num_reqs

    def snapshot(self) -> LoadSnapshot:
        """Counters and memory; the caller adds what it knows of its queues."""
        counts, cache = self._counts, self._memory.tree_cache
        return LoadSnapshot(
            num_used_tokens=self._memory.used(),
            num_evictable_tokens=cache.evictable_size(),
            max_total_num_tokens=self._memory.size,
            max_running_requests=self._memory.req_to_token_pool.size,
            gen_throughput=self._throughput,
            prompt_tokens_total=counts.prompt_tokens_total,
            cached_tokens_total=counts.cached_tokens_total,
            generation_tokens_total=counts.generation_tokens_total,
            evicted_tokens_total=cache.counters.num_evicted_tokens,
            num_requests_total=counts.num_requests_total,
            num_aborted_requests_total=counts.num_aborted_requests_total,
            num_retracted_requests_total=counts.num_retracted_requests_total,
            num_steps=counts.num_steps,
        )
