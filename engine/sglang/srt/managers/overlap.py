"""Passes in a thread of their own, so that a step is planned while the one before computes."""

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from sglang.srt.core.batch import GenerationBatchResult, ScheduleBatch
from sglang.srt.core.request import Req
from sglang.srt.sampling.batch_params import needs_history


class Steps(Protocol):
    """The scheduler's halves of a step, looked up at each call: plugins may hook them."""

    def run_batch(self, batch: ScheduleBatch) -> GenerationBatchResult: ...

    def process_batch_result(self, batch: ScheduleBatch, result: GenerationBatchResult) -> None: ...


class ForwardLane:
    """Runs passes one after the other. At most two are under way: one computes, one waits for it.

    The token that a pass chooses and the next one needs goes from one to the other inside the
    thread; the scheduler learns it when it settles the pass.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sglang-forward")
        self._flying: deque[tuple[ScheduleBatch, Future[GenerationBatchResult]]] = deque()
        self._newest: dict[Req, int] = {}  # of the pass that ran last; the thread's own

    @property
    def is_busy(self) -> bool:
        return bool(self._flying)

    def launch(self, batch: ScheduleBatch) -> None:
        """Returns at once; `settle` must follow."""
        if self._flying and any(map(needs_history, batch.reqs)):
            batch.history_ready = threading.Event()
        self._flying.append((batch, self._thread.submit(self._compute, batch)))

    def settle(self, leave: int = 0) -> None:
        """Waits for all passes but the last `leave`, and takes in their results in order."""
        while len(self._flying) > leave:
            batch, future = self._flying.popleft()
            try:
                self._steps.process_batch_result(batch, future.result())
            finally:
                for following, _ in self._flying:
                    if following.history_ready is not None:
                        following.history_ready.set()

    def close(self) -> None:
        """Ends the thread; passes that did not begin are dropped."""
        for batch, _ in self._flying:
            if batch.history_ready is not None:
                batch.history_ready.set()
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _compute(self, batch: ScheduleBatch) -> GenerationBatchResult:
        for index, req in batch.layout.futures.items():
            batch.layout.input_ids[index] = self._newest[req]
        result = self._steps.run_batch(batch)
        self._newest = dict(zip(batch.reqs, result.next_token_ids, strict=True))
        return result
