"""What the launcher is told after a step: answers, and how loaded the scheduler is."""

from sglang.srt.core.messages import LoadSnapshot, StepOutput
from sglang.srt.managers.live_requests import LiveRequests
from sglang.srt.managers.load_stats import LoadStats
from sglang.srt.managers.new_token_ratio import NewTokenRatio
from sglang.srt.managers.outputs import OutputAssembler
from sglang.srt.managers.parts import Sink
from sglang.srt.managers.waiting_queue import WaitingQueue


class News:
    """One message per step."""

    def __init__(self, outbox: Sink, outputs: OutputAssembler, stats: LoadStats) -> None:
        self._outbox = outbox
        self._outputs = outputs
        self._stats = stats
        self._last_load = LoadSnapshot()

    def watch(self, live: LiveRequests, waiting: WaitingQueue, ratio: NewTokenRatio) -> None:
        """Called once, before anything is reported."""
        self._live, self._waiting, self._ratio = live, waiting, ratio

    def load(self) -> LoadSnapshot:
        load = self._stats.snapshot()
        load.num_running_reqs = self._live.num_running
        load.num_waiting_reqs = self._live.num_waiting
        load.num_waiting_uncached_tokens = self._waiting.num_uncached_tokens()
        load.new_token_ratio = self._ratio.value
        return load

    def report_answers(self) -> None:
        """Between steps: refusals and ends do not wait for a result."""
        if self._outputs.has_news:
            self.report()

    def report(self, *, only_news: bool = False) -> None:
        """With `only_news` nothing is sent when nothing has changed."""
        outputs, load = self._outputs.take(), self.load()
        if only_news and not outputs and load == self._last_load:
            return
        self._last_load = load
        self._outbox.send(StepOutput(outputs=outputs, load=load))
