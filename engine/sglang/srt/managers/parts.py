"""What a scheduler is composed of."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sglang.srt.constrained.agreement import RankAgreement
from sglang.srt.constrained.base_grammar_backend import BaseGrammarBackend
from sglang.srt.core.batch import GenerationBatchResult, ScheduleBatch
from sglang.srt.core.config import ScheduleConfig
from sglang.srt.core.messages import SchedulerInput, SchedulerOutput
from sglang.srt.managers.adapters import LoadedAdapters
from sglang.srt.managers.admission import Limits
from sglang.srt.managers.stop_rules import StopTextFactory
from sglang.srt.mem_cache.request_memory import RequestMemory


class Source(Protocol):
    def receive(self, *, wait: float | None) -> list[SchedulerInput]:
        """All that has arrived; waits up to so many seconds for it, None: until there is any."""


class Sink(Protocol):
    def send(self, output: SchedulerOutput) -> None:
        """Never waits for the other side."""


class Worker(Protocol):
    def forward_batch_generation(self, batch: ScheduleBatch) -> GenerationBatchResult:
        """Computes the batch's new tokens, writes their KV, and chooses the next tokens."""


@dataclass(frozen=True)
class SchedulerParts:
    """Whoever builds a scheduler chooses them."""

    inbox: Source
    outbox: Sink
    worker: Worker
    memory: RequestMemory
    config: ScheduleConfig
    limits: Limits
    make_stop_text: StopTextFactory
    grammar_backend: BaseGrammarBackend | None = None  # None: constraints are refused
    grammar_agreement: RankAgreement | None = None  # None: no other rank computes the same requests
    adapters: LoadedAdapters | None = None  # None: requests cannot name any
    release_caches: Callable[[], None] = lambda: None  # what the model keeps only for speed
    clock: Callable[[], float] = time.monotonic  # of deadlines and throughput, in seconds
