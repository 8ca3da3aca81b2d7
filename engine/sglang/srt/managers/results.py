"""Takes what a pass has computed into its requests, and ends those that are done."""

from collections.abc import Callable

from sglang.srt.constrained.grammar_manager import accept_token
from sglang.srt.core.batch import GenerationBatchResult, ScheduleBatch
from sglang.srt.core.messages import FinishReason, LogprobRows
from sglang.srt.core.request import Req
from sglang.srt.managers.batch_layout import take_in
from sglang.srt.managers.decode import RunningBatch
from sglang.srt.managers.live_requests import LiveRequests
from sglang.srt.managers.load_stats import LoadStats
from sglang.srt.managers.outputs import OutputAssembler, add_input_logprobs, add_output_logprobs
from sglang.srt.managers.prefill import PrefillPlanner
from sglang.srt.managers.stop_rules import StopRules, length_ends
from sglang.srt.mem_cache.request_memory import RequestMemory


class Results:
    """After a pass each of its requests is in its place again: in chunks, running, or at its end.

    A request that ended while the pass was under way gets nothing of it.
    """

    def __init__(
        self,
        live: LiveRequests,
        memory: RequestMemory,
        places: tuple[PrefillPlanner, RunningBatch],
        answers: tuple[StopRules, OutputAssembler, LoadStats],
        when_ended: Callable[[Req], None],
    ) -> None:
        self._live = live
        self._memory = memory
        self._prefill, self._running = places
        self._stop_rules, self._outputs, self._stats = answers
        self._when_ended = when_ended

    def take(self, batch: ScheduleBatch, result: GenerationBatchResult) -> None:
        """Once per pass, in the order in which passes ran."""
        take_in(batch)
        num_new_tokens = 0
        rows = zip(batch.reqs, result.next_token_ids, result.output_logprobs, strict=True)
        for i, (req, token_id, output_rows) in enumerate(rows):
            if req.finished:
                continue
            is_prompt = i < batch.num_prompts
            if is_prompt:
                add_input_logprobs(req, result.input_logprobs[i])
            if not batch.layout.is_final[i]:
                self._memory.share_prompt(req, chunked=True)
                continue
            if result.embeddings is not None:
                req.embedding = result.embeddings[i]
            num_new_tokens += self._take_token(req, token_id, output_rows)
            self._settle(req, is_prompt)
        self._stats.stepped(num_new_tokens)

    def end(self, req: Req, reason: FinishReason) -> None:
        """The last thing that happens to a request; it is in no place any more."""
        self._live.end(req, reason)
        self._stats.ended(req)
        self._when_ended(req)
        self._outputs.progressed(req)

    def _take_token(self, req: Req, token_id: int, rows: LogprobRows | None) -> int:
        """The number of tokens that the answer grew by: none if it wants none, or on a failure."""
        before = len(req.output_ids)
        if req.to_finish is not None:
            req.finished_reason = req.to_finish
        elif req.max_new_tokens == 0:
            req.finished_reason = length_ends(req)
        else:
            self._stop_rules.append(req, token_id)
            accept_token(req, token_id)
        grown = len(req.output_ids) - before
        if grown:
            add_output_logprobs(req, rows)
        return grown

    def _settle(self, req: Req, is_prompt: bool) -> None:
        """Where the request goes after a pass that computed its next token."""
        if is_prompt:
            self._stats.prefilled(req)
            self._prefill.joined(req)
        if req.finished_reason is not None:
            if not is_prompt:
                self._running.remove(req)
            self.end(req, req.finished_reason)
            return
        if is_prompt:
            self._memory.share_prompt(req)
            self._running.add(req)
        self._outputs.progressed(req)
