"""Counts what the scheduler did, notes when, and says how loaded it is."""

import logging
from collections.abc import Callable, Sequence

from sglang.srt.constrained.grammar_manager import GrammarCounters
from sglang.srt.core.batch import ScheduleBatch
from sglang.srt.core.messages import GenerateInput, LoadSnapshot
from sglang.srt.core.request import Req
from sglang.srt.mem_cache.request_memory import RequestMemory
from sglang.srt.mem_cache.swa_memory import SWATokenToKVPoolAllocator

logger = logging.getLogger(__name__)
THROUGHPUT_WINDOW = 1.0  # seconds


class LoadStats:
    """Counters since the start, or since `reset`. The scheduler calls a method per event."""

    def __init__(
        self,
        memory: RequestMemory,
        grammars: GrammarCounters,
        clock: Callable[[], float],
        log_interval: int = 0,
    ) -> None:
        """`log_interval`: decode steps between two lines in the log; 0 logs none."""
        self._memory = memory
        self._grammars = grammars
        self._clock = clock
        self._log_interval = log_interval
        self.is_paused = False  # set by whoever pauses
        self.reset()

    def reset(self) -> None:
        self._counts = LoadSnapshot()
        self._window_start = self._clock()
        self._window_tokens = 0
        self._throughput = 0.0
        self._start_log_window()

    # ---------------------------------------------------------------- events of requests

    def received(self, request: GenerateInput) -> None:
        self._counts.num_requests_total += 1
        if request.sampling.constraints:
            self._counts.num_so_requests_total += 1

    def accepted(self, req: Req) -> None:
        req.times.received = self._clock()

    def refused(self) -> None:
        self._counts.num_aborted_requests_total += 1

    def planned(self, batch: ScheduleBatch | None) -> None:
        """A batch with prompts in it was chosen: its new requests wait no more."""
        if batch is None:
            return
        prompts = batch.reqs[: batch.num_prompts]
        for req, prefix_len in zip(prompts, batch.extend_prefix_lens, strict=False):
            times = req.times
            if len(times.admissions) == len(times.retractions):
                times.admissions.append(self._clock())
                self._counts.prefill_cache_tokens_total += prefix_len

    def prefilled(self, req: Req) -> None:
        """Once per request: a prompt that is computed again after retraction counts no more."""
        if req.times.prefilled is None:
            req.times.prefilled = self._clock()
            self._counts.prompt_tokens_total += len(req.origin_input_ids)
            self._counts.cached_tokens_total += req.cached_tokens
            tiers = req.cached_tokens_details or {}
            self._counts.cached_host_tokens_total += tiers.get("host", 0)
            self._counts.cached_storage_tokens_total += tiers.get("storage", 0)

    def retracted(self, reqs: Sequence[Req]) -> None:
        self._counts.num_retracted_requests_total += len(reqs)
        for req in reqs:
            req.times.retractions.append(self._clock())

    def ended(self, req: Req) -> None:
        req.times.finished = self._clock()
        if req.finished_reason is not None and req.finished_reason.type == "abort":
            self._counts.num_aborted_requests_total += 1

    # ---------------------------------------------------------------- events of steps

    def computed(self, batch: ScheduleBatch) -> None:
        """A pass is over, before anything is made of its result."""
        if batch.num_prompts:
            now = self._clock()
            for req, new_len in zip(
                batch.reqs[: batch.num_prompts], batch.extend_seq_lens, strict=False
            ):
                req.times.chunks.append((now, new_len))
                self._counts.prefill_compute_tokens_total += new_len
        if num_answers := batch.batch_size - batch.num_prompts:
            self._counts.decode_tokens_total += num_answers
            self._log_steps += 1

    def stepped(self, num_new_tokens: int) -> None:
        self._counts.num_steps += 1
        self._counts.generation_tokens_total += num_new_tokens
        self._window_tokens += num_new_tokens
        self._log_tokens += num_new_tokens
        elapsed = self._clock() - self._window_start
        if elapsed >= THROUGHPUT_WINDOW:
            self._throughput = self._window_tokens / elapsed
            self._window_start, self._window_tokens = self._clock(), 0

    def idled(self) -> None:
        """No work is no throughput, and the next window starts with work."""
        self._throughput = 0.0
        self._window_start, self._window_tokens = self._clock(), 0
        self._start_log_window()

    # ---------------------------------------------------------------- reports

    def snapshot(self) -> LoadSnapshot:
        """Counters and memory; the caller adds what it knows of its queues."""
        counts, cache, grammars = self._counts, self._memory.tree_cache, self._grammars
        done = cache.counters
        size_swa, free_swa = self._window_pool()
        return LoadSnapshot(
            num_used_tokens=self._memory.used(),
            num_evictable_tokens=cache.evictable_size(),
            max_total_num_tokens=self._memory.size,
            max_running_requests=self._memory.req_to_token_pool.size,
            gen_throughput=self._throughput,
            prompt_tokens_total=counts.prompt_tokens_total,
            cached_tokens_total=counts.cached_tokens_total,
            generation_tokens_total=counts.generation_tokens_total,
            evicted_tokens_total=done.num_evicted_tokens,
            num_requests_total=counts.num_requests_total,
            num_aborted_requests_total=counts.num_aborted_requests_total,
            num_retracted_requests_total=counts.num_retracted_requests_total,
            num_steps=counts.num_steps,
            num_so_requests_total=counts.num_so_requests_total,
            num_grammar_total=grammars.num_looked_up,
            num_grammar_cache_hit_total=grammars.num_cache_hits,
            num_grammar_timeout_total=grammars.num_timeouts,
            num_grammar_aborted_total=grammars.num_aborted,
            prefill_compute_tokens_total=counts.prefill_compute_tokens_total,
            prefill_cache_tokens_total=counts.prefill_cache_tokens_total,
            decode_tokens_total=counts.decode_tokens_total,
            load_back_tokens_total=done.num_loaded_back_tokens,
            prefetched_tokens_total=done.num_prefetched_tokens,
            backuped_tokens_total=done.num_backed_up_tokens,
            host_used_tokens=done.num_host_used_tokens,
            host_total_tokens=done.num_host_total_tokens,
            swa_used_tokens=size_swa - free_swa,
            swa_total_tokens=size_swa,
            cached_host_tokens_total=counts.cached_host_tokens_total,
            cached_storage_tokens_total=counts.cached_storage_tokens_total,
        )

    def take_durations(self) -> dict[str, list[float]]:
        """Seconds that evictions, loads and compilations took since the last call, by name."""
        cache, grammars = self._memory.tree_cache.counters, self._grammars
        taken = {
            "eviction": cache.eviction_seconds,
            "load_back": cache.load_back_seconds,
            "grammar": grammars.compilation_seconds,
        }
        cache.eviction_seconds, cache.load_back_seconds = [], []
        grammars.compilation_seconds = []
        return {name: seconds for name, seconds in taken.items() if seconds}

    def log_decodes(self, load: LoadSnapshot) -> None:
        """A line once enough decode steps have passed since the last one."""
        if not 0 < self._log_interval <= self._log_steps:
            return
        elapsed = self._clock() - self._log_start
        logger.info(
            "decode: %d running, %d tokens (usage %.2f), %.1f tokens/s, %d waiting",
            load.num_running_reqs, load.num_used_tokens, load.token_usage,
            self._log_tokens / elapsed if elapsed > 0 else 0.0, load.num_waiting_reqs,
        )  # fmt: skip
        self._start_log_window()

    def _window_pool(self) -> tuple[int, int]:
        """Tokens in all, and free ones, of the pool of layers with a window; 0 without one."""
        allocator = self._memory.allocator
        if isinstance(allocator, SWATokenToKVPoolAllocator):
            return allocator.size_swa, allocator.swa_available_size()
        return 0, 0

    def _start_log_window(self) -> None:
        self._log_start, self._log_steps, self._log_tokens = self._clock(), 0, 0
