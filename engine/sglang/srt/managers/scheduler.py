"""The scheduler: takes requests, forms batches, runs them, reports the tokens."""

import sys
import time
from collections.abc import Mapping, Sequence

import msgspec

from sglang.srt import plugins
from sglang.srt.constrained.grammar_manager import GrammarManager, accept_token, why_invalid
from sglang.srt.core.batch import GenerationBatchResult, ScheduleBatch
from sglang.srt.core.config import PortArgs
from sglang.srt.core.messages import (
    QUEUE_FULL,
    AbortInput,
    ControlInput,
    Failed,
    FinishReason,
    GenerateInput,
    LoadSnapshot,
    LogprobRows,
    SchedulerInput,
    ShutdownInput,
    StepOutput,
)
from sglang.srt.core.request import Req, RequestState
from sglang.srt.managers.admission import Refused, admit
from sglang.srt.managers.control import ControlTable, start_kv_events
from sglang.srt.managers.decode import RunningBatch
from sglang.srt.managers.hicache_control import hicache_operations
from sglang.srt.managers.inbox import Inbox
from sglang.srt.managers.live_requests import LiveRequests
from sglang.srt.managers.load_stats import LoadStats
from sglang.srt.managers.new_token_ratio import NewTokenRatio
from sglang.srt.managers.outbox import Outbox
from sglang.srt.managers.outputs import OutputAssembler, add_input_logprobs, add_output_logprobs
from sglang.srt.managers.parts import SchedulerParts
from sglang.srt.managers.prefill import PrefillPlanner
from sglang.srt.managers.process import (
    connect,
    parts_of,
    ready_message,
    report_loading,
    warm_up,
    worker_around,
)
from sglang.srt.managers.schedule_policy import SchedulePolicy
from sglang.srt.managers.stop_rules import StopRules, length_ends
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.managers.waiting_queue import WaitingQueue
from sglang.srt.managers.watchdog import Watchdog
from sglang.srt.server_args import ServerArgs

EXPIRED = FinishReason(
    type="abort", message="The request did not end before its deadline.", status_code=504
)
SHUTTING_DOWN = FinishReason(type="abort", message="The server is shutting down.", status_code=503)


class Scheduler:
    """Owns every request from its arrival to its last output. One thread, one step at a time.

    `gpu_id` is for plugins, which read it after `__init__`; on a CPU it is 0.
    """

    def __init__(self, parts: SchedulerParts, gpu_id: int = 0) -> None:
        config, memory = parts.config, parts.memory
        self.gpu_id = gpu_id
        self.inbox, self.outbox, self.worker = parts.inbox, parts.outbox, parts.worker
        self.memory, self.limits, self._clock = memory, parts.limits, parts.clock
        self._release_caches = parts.release_caches
        self.ratio = NewTokenRatio(config.schedule_conservativeness)
        self.waiting = WaitingQueue(config.max_queued_requests)
        self.prefill = PrefillPlanner(
            config, memory, SchedulePolicy(config.schedule_policy, memory.tree_cache)
        )
        self.running = RunningBatch(memory, self.ratio)
        self.stop_rules = StopRules(parts.limits.vocab_size, parts.make_stop_text)
        self.outputs = OutputAssembler(config.stream_interval)
        self.watchdog = Watchdog(config.watchdog_timeout)
        self.control = ControlTable(
            {
                "flush_cache": self.flush_cache,
                "loads": self.loads,
                "kv_events": start_kv_events(memory.tree_cache),
                **hicache_operations(memory.tree_cache),
            }
        )
        self.grammar_manager = GrammarManager(parts.grammar_backend, clock=parts.clock)
        self.stats = LoadStats(
            memory, self.grammar_manager.counters, parts.clock, config.decode_log_interval
        )
        self.live = LiveRequests(
            memory, self.waiting, self.prefill, self.running, self.grammar_manager
        )
        self.stopped = False
        self._rested = False
        self._decode_is_due = False
        self._last_load = LoadSnapshot()

    # ---------------------------------------------------------------- the loop

    def run_event_loop(self) -> None:
        while not self.stopped:
            self.process_input_requests(self.inbox.receive(block=self.is_idle))
            if batch := self.get_next_batch_to_run():
                self.process_batch_result(batch, self.run_batch(batch))
            else:
                self.on_idle()

    @property
    def is_idle(self) -> bool:
        """Nothing is left to do, and `on_idle` has seen it: the loop may wait for input."""
        return self._rested and not self.live

    def process_input_requests(self, recv_reqs: Sequence[SchedulerInput]) -> None:
        for request in recv_reqs:
            match request:
                case GenerateInput():
                    self.handle_generate_request(request)
                case AbortInput():
                    self.abort_request(request)
                case ControlInput():
                    answer = self.control.run(request)
                    # First the load, so that whoever reads the answer sees its effect.
                    self._report(only_news=True)
                    self.outbox.send(answer)
                case ShutdownInput():
                    self.shut_down()

    def get_next_batch_to_run(self) -> ScheduleBatch | None:
        """New prompts first, then one more token for the running ones: at most one prefill step
        passes between two tokens of an answer.
        """
        for req in self.live.expired(self._clock()):
            self._abort(req, EXPIRED)
        for req in self.live.take_compiled():
            self._abort(req, why_invalid(req))
        if self._decode_is_due and (batch := self._next_decode_batch()):
            return batch
        batch = self.prefill.plan(self.waiting, self.running.reqs, self.ratio.value)
        self.stats.planned(batch)
        self._decode_is_due = batch is not None and bool(self.running.reqs)
        return batch or self._next_decode_batch()

    def run_batch(self, batch: ScheduleBatch) -> GenerationBatchResult:
        with self.watchdog.watch():
            batch.run_kv_copies()
            return self.worker.forward_batch_generation(batch)

    def process_batch_result(self, batch: ScheduleBatch, result: GenerationBatchResult) -> None:
        is_prefill = batch.forward_mode.is_extend()
        num_new_tokens = 0
        self._rested = False
        self.stats.computed(batch)
        rows = zip(batch.reqs, result.next_token_ids, result.output_logprobs, strict=True)
        for i, (req, token_id, output_rows) in enumerate(rows):
            add_input_logprobs(req, result.input_logprobs[i])
            if req is self.prefill.chunked:
                self.memory.share_prompt(req, chunked=True)
                continue
            if result.embeddings is not None:
                req.embedding = result.embeddings[i]
            num_new_tokens += self._take_token(req, token_id, output_rows)
            self._settle(req, is_prefill)
        self.stats.stepped(num_new_tokens)
        self._report()

    def on_idle(self) -> None:
        """Nothing to compute: the moment to check that no memory is lost."""
        for copy in self.memory.take_kv_copies():
            copy()
        self.memory.host_tier.wait_for_storage()
        self.memory.check_integrity(self.live.holders())
        self.ratio.reset()
        self.stats.idled()
        self._report(only_news=True)
        self._rested = True

    # ---------------------------------------------------------------- requests

    def handle_generate_request(self, request: GenerateInput) -> None:
        self.stats.received(request)
        try:
            if request.rid in self.live:
                raise Refused(f"Duplicate request ID detected: {request.rid}")
            req = admit(request, self.limits)
            self.stop_rules.prepare(req)
            if not self.live.has_room_for(req):
                raise Refused(QUEUE_FULL, status_code=503)
        except Refused as refused:
            self.stats.refused()
            self.outputs.refused(request.rid, len(request.input_ids), refused.reason)
        else:
            self.stats.accepted(req)
            self.live.add(req)

    def abort_request(self, request: AbortInput) -> None:
        """Exact ids only; ids of requests that ended already are no error."""
        named = self.live if request.all else map(self.live.get, request.rids)
        for req in named:
            if req is not None:
                waits = req.state in (RequestState.COMPILING, RequestState.WAITING)
                where = "Abort in waiting queue: " if waits else ""
                self._abort(req, FinishReason(type="abort", message=where + request.message))

    def shut_down(self) -> None:
        """Ends every request and the loop."""
        for req in self.live:
            self._abort(req, SHUTTING_DOWN)
        self._report()
        self.stopped = True

    def flush_cache(self, args: Mapping[str, object]) -> dict[str, object]:
        """Forgets every cached prefix and grammar, unless a request runs or waits."""
        if self.live:
            message = (
                f"The cache was not flushed: {self.live.num_running} requests run and "
                f"{self.live.num_waiting} wait. Try again when they have ended."
            )
            return {"success": False, "message": message}
        self.memory.clear()
        self.grammar_manager.clear()
        self._release_caches()
        return {"success": True, "message": "The cache is flushed."}

    def loads(self, args: Mapping[str, object]) -> dict[str, object]:
        """The load right now, by the names of `LoadSnapshot`."""
        return dict(msgspec.structs.asdict(self._load()))

    # ---------------------------------------------------------------- steps

    def _next_decode_batch(self) -> ScheduleBatch | None:
        self._decode_is_due = False
        if not self.running.reqs:
            return None
        plan = self.running.plan(others_hold_memory=self.prefill.chunked is not None)
        self.waiting.put_back(plan.retracted)
        self.stats.retracted(plan.retracted)
        if plan.out_of_memory is not None:
            message = (
                f"out of memory: the request outgrew the KV pool of {self.memory.size} tokens "
                f"after {len(plan.out_of_memory.output_ids)} new ones"
            )
            reason = FinishReason(type="abort", message=message, status_code=500)
            self._end(plan.out_of_memory, reason)
        return plan.batch

    def _take_token(self, req: Req, token_id: int, rows: LogprobRows | None) -> int:
        """The number of tokens that the answer grew by: none if it wants none, or on a failure."""
        before = len(req.output_ids)
        if req.to_finish is not None:
            req.finished_reason = req.to_finish
        elif req.max_new_tokens == 0:
            req.finished_reason = length_ends(req)
        else:
            self.stop_rules.append(req, token_id)
            accept_token(req, token_id)
        grown = len(req.output_ids) - before
        if grown:
            add_output_logprobs(req, rows)
        return grown

    def _settle(self, req: Req, is_prefill: bool) -> None:
        """Where the request goes after a step that computed its next token."""
        if is_prefill:
            self.stats.prefilled(req)
        if req.finished_reason is not None:
            if not is_prefill:
                self.running.remove(req)
            self._end(req, req.finished_reason)
            return
        if is_prefill:
            self.memory.share_prompt(req)
            self.running.add(req)
        self.outputs.progressed(req)

    def _abort(self, req: Req, reason: FinishReason) -> None:
        self.live.take_out(req)
        self._end(req, reason)

    def _end(self, req: Req, reason: FinishReason) -> None:
        """The last thing that happens to a request; it is in no place any more."""
        self.live.end(req, reason)
        self.stats.ended(req)
        self.outputs.progressed(req)

    # ---------------------------------------------------------------- reports

    def _load(self) -> LoadSnapshot:
        load = self.stats.snapshot()
        load.num_running_reqs, load.num_waiting_reqs = self.live.num_running, self.live.num_waiting
        load.num_waiting_uncached_tokens = self.waiting.num_uncached_tokens()
        load.num_grammar_queue_reqs = len(self.grammar_manager)
        load.num_retracted_reqs = self.waiting.num_retracted()
        load.new_token_ratio = self.ratio.value
        return load

    def _report(self, *, only_news: bool = False) -> None:
        outputs, load = self.outputs.take(), self._load()
        kv_events = self.memory.tree_cache.take_events()
        durations = self.stats.take_durations()
        self.stats.log_decodes(load)
        is_news = bool(outputs or kv_events or durations)
        if only_news and not is_news and load == self._last_load:
            return
        self._last_load = load
        self.outbox.send(
            StepOutput(outputs=outputs, kv_events=kv_events, load=load, durations=durations)
        )


def run_scheduler_process(server_args: ServerArgs, port_args: PortArgs, gpu_id: int = 0) -> None:
    """The whole life of the scheduler process: load, warm up, report ready, serve, end.

    What cannot be loaded is reported as `Failed` in one sentence; a fault of ours is also raised.
    Both end the process with a non-zero code.
    """
    plugins.load_plugins()  # before anything is built, so that hooks on all of it count
    start = time.monotonic()
    with connect(port_args) as (inbox, outbox):
        try:
            target, parts = _load(server_args, gpu_id, inbox, outbox)
            # The class is looked up now, so that a replaced one is used.
            scheduler = Scheduler(parts, gpu_id)
            if not server_args.skip_server_warmup:
                warm_up(scheduler)
            outbox.send(ready_message(target, server_args, time.monotonic() - start))
            scheduler.run_event_loop()
            scheduler.memory.host_tier.close()
        except CannotServe as error:
            outbox.send(Failed(message=str(error)))
            sys.exit(1)
        except Exception as error:
            outbox.send(Failed(message=f"{type(error).__name__}: {error}"))
            raise


class CannotServe(Exception):
    """The model cannot be loaded as asked; the text is a sentence for the operator."""


def _load(
    server_args: ServerArgs, gpu_id: int, inbox: Inbox, outbox: Outbox
) -> tuple[TpModelWorker, SchedulerParts]:
    """The worker that owns model and memory, and the parts of a scheduler that uses it."""
    try:
        target = TpModelWorker(server_args, gpu_id, report_loading(outbox))
        worker = worker_around(target, server_args)
        return target, parts_of(target, worker, server_args, inbox, outbox)
    except (ValueError, OSError) as error:
        raise CannotServe(str(error)) from error
