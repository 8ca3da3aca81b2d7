"""What the launcher is told after a step: answers, cache events, and how loaded we are."""

from sglang.srt.constrained.grammar_manager import GrammarManager
from sglang.srt.core.messages import LoadSnapshot, StepOutput
from sglang.srt.managers.adapters import LoadedAdapters
from sglang.srt.managers.live_requests import LiveRequests
from sglang.srt.managers.load_stats import LoadStats
from sglang.srt.managers.new_token_ratio import NewTokenRatio
from sglang.srt.managers.outputs import OutputAssembler
from sglang.srt.managers.parts import Sink
from sglang.srt.managers.waiting_queue import WaitingQueue
from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache


class News:
    """One message per step."""

    def __init__(
        self, outbox: Sink, outputs: OutputAssembler, stats: LoadStats, cache: BasePrefixCache
    ) -> None:
        self._outbox = outbox
        self._outputs = outputs
        self._stats = stats
        self._cache = cache
        self._last_load = LoadSnapshot()

    def watch(
        self,
        live: LiveRequests,
        waiting: WaitingQueue,
        ratio: NewTokenRatio,
        grammars: GrammarManager,
        adapters: LoadedAdapters | None,
    ) -> None:
        """Called once, before anything is reported."""
        self._adapters = adapters
        self._live, self._waiting = live, waiting
        self._ratio, self._grammars = ratio, grammars

    def load(self) -> LoadSnapshot:
        load = self._stats.snapshot()
        load.num_running_reqs = self._live.num_running
        load.num_waiting_reqs = self._live.num_waiting
        load.num_waiting_uncached_tokens = self._waiting.num_uncached_tokens()
        load.num_grammar_queue_reqs = len(self._grammars)
        load.num_grammars_cached, load.grammar_cache_bytes = self._grammars.cache_size
        load.num_retracted_reqs = self._waiting.num_retracted()
        load.num_paused_reqs = len(self._live) if self._stats.is_paused else 0
        load.new_token_ratio = self._ratio.value
        if self._adapters is not None:
            load.lora_slots_used = self._adapters.num_slots_used
            load.lora_slots_total = self._adapters.max_loras_per_batch
        return load

    def report_answers(self) -> None:
        """Between steps: refusals and ends do not wait for a result."""
        if self._outputs.has_news:
            self.report()

    def report(self, *, only_news: bool = False) -> None:
        """With `only_news` nothing is sent when nothing has changed."""
        outputs, load = self._outputs.take(), self.load()
        kv_events = self._cache.take_events()
        durations = self._stats.take_durations()
        self._stats.log_decodes(load)
        is_news = bool(outputs or kv_events or durations)
        if only_news and not is_news and load == self._last_load:
            return
        self._last_load = load
        self._outbox.send(
            StepOutput(outputs=outputs, kv_events=kv_events, load=load, durations=durations)
        )
