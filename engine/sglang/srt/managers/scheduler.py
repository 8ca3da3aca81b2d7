"""The scheduler: takes requests, forms batches, runs them, reports the tokens."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from sglang.srt import plugins
from sglang.srt.constrained.grammar_manager import GrammarManager, why_invalid
from sglang.srt.core.batch import GenerationBatchResult, ScheduleBatch
from sglang.srt.core.config import PortArgs
from sglang.srt.core.messages import (
    QUEUE_FULL,
    AbortInput,
    ControlInput,
    Failed,
    FinishReason,
    GenerateInput,
    SchedulerInput,
    ShutdownInput,
)
from sglang.srt.core.request import Req, RequestState
from sglang.srt.managers.adapters import AdapterRoom, lora_operations
from sglang.srt.managers.admission import Refused, admit
from sglang.srt.managers.batch_layout import mixed_batch
from sglang.srt.managers.control import ControlTable, start_kv_events
from sglang.srt.managers.decode import RunningBatch, victim_key
from sglang.srt.managers.hicache_control import hicache_operations
from sglang.srt.managers.inbox import Inbox
from sglang.srt.managers.live_requests import LiveRequests
from sglang.srt.managers.load_stats import LoadStats
from sglang.srt.managers.new_token_ratio import NewTokenRatio
from sglang.srt.managers.news import News
from sglang.srt.managers.outbox import Outbox
from sglang.srt.managers.outputs import OutputAssembler
from sglang.srt.managers.overlap import ForwardLane
from sglang.srt.managers.parts import SchedulerParts
from sglang.srt.managers.preemption import Preemption
from sglang.srt.managers.prefill import PrefillPlanner
from sglang.srt.managers.priority import Priorities
from sglang.srt.managers.process import (
    connect,
    keep_for_good,
    parts_of,
    ready_message,
    report_loading,
    warm_up,
    worker_around,
)
from sglang.srt.managers.results import Results
from sglang.srt.managers.schedule_policy import SchedulePolicy
from sglang.srt.managers.sessions import Sessions
from sglang.srt.managers.stop_rules import StopRules
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.managers.waiting_queue import WaitingQueue
from sglang.srt.managers.watchdog import Watchdog
from sglang.srt.server_args import ServerArgs

POLL = 0.005  # seconds between two looks when requests wait for something that tells nobody
PAUSE_MODES = ("abort", "retract", "in_place")
SHUTTING_DOWN = FinishReason(type="abort", message="The server is shutting down.", status_code=503)
# No fault: what was generated so far is the answer.
PAUSED = FinishReason(type="abort", message="Generation was paused.")
DISPLACED = FinishReason(type="abort", message=QUEUE_FULL, status_code=503)


class Scheduler:
    """Owns every request from its arrival to its last output. One thread, one step at a time.

    With overlap a second thread computes; whatever takes a request out of its place between two
    steps calls `catch_up` first, so that no pass is under way.
    `gpu_id` is for plugins, which read it after `__init__`; on a CPU it is 0.
    """

    def __init__(self, parts: SchedulerParts, gpu_id: int = 0) -> None:
        config, memory = parts.config, parts.memory
        self.gpu_id = gpu_id
        self.inbox, self.outbox, self.worker = parts.inbox, parts.outbox, parts.worker
        self.memory, self.limits, self.config = memory, parts.limits, config
        self._clock, self._release_caches = parts.clock, parts.release_caches
        self.ratio = NewTokenRatio(config.schedule_conservativeness)
        self.priorities = Priorities(config.priority)
        self.waiting = WaitingQueue(config.max_queued_requests)
        policy = SchedulePolicy(config.schedule_policy, memory.tree_cache, self.priorities)
        self.adapter_room = AdapterRoom(parts.adapters, config.lora_drain_after, parts.clock)
        self.prefill = PrefillPlanner(config, memory, policy, self.adapter_room.fits_beside)
        self.preemption = Preemption(memory, self.priorities)
        self.running = RunningBatch(
            memory, self.ratio, victim_key(config.retraction_policy, self.priorities.urgency)
        )
        self.stop_rules = StopRules(parts.limits.vocab_size, parts.make_stop_text)
        self.outputs = OutputAssembler(config.stream_interval)
        self.watchdog = Watchdog(config.watchdog_timeout)
        self.grammar_manager = GrammarManager(
            parts.grammar_backend, parts.grammar_agreement, parts.clock
        )
        self.stats = LoadStats(
            memory, self.grammar_manager.counters, parts.clock, config.decode_log_interval
        )
        self.sessions = Sessions(parts.limits.context_len, parts.clock)
        self.live = LiveRequests(
            memory, self.waiting, self.prefill, self.running, self.grammar_manager
        )
        self.results = Results(
            self.live,
            memory,
            (self.prefill, self.running),
            (self.stop_rules, self.outputs, self.stats),
            self.sessions.ended,
        )
        self.news = News(parts.outbox, self.outputs, self.stats, memory.tree_cache)
        self.news.watch(self.live, self.waiting, self.ratio, self.grammar_manager, parts.adapters)
        self.lane = ForwardLane(self) if config.overlap else None
        self.catch_up: Callable[[], None] = self.lane.settle if self.lane else lambda: None
        self.control = ControlTable(
            {
                "flush_cache": self.flush_cache,
                "loads": lambda args: dict(msgspec.structs.asdict(self.news.load())),
                "pause_generation": self.pause_generation,
                "continue_generation": self.continue_generation,
                "open_session": self.sessions.open,
                "close_session": self.sessions.close,
                "kv_events": start_kv_events(memory.tree_cache),
                **hicache_operations(memory.tree_cache),
                **lora_operations(parts.adapters, self.live),
            }
        )
        self.paused = False
        self.stopped = False
        self._rested = False
        self._decode_is_due = False

    # ---------------------------------------------------------------- the loops

    def run_event_loop(self) -> None:
        if self.lane is None:
            self.event_loop_normal()
        else:
            self.event_loop_overlap(self.lane)

    def event_loop_normal(self) -> None:
        while not self.stopped:
            self.process_input_requests(self.inbox.receive(wait=self.wait))
            if batch := self.get_next_batch_to_run():
                self.process_batch_result(batch, self.run_batch(batch))
            else:
                self.on_idle()

    def event_loop_overlap(self, lane: ForwardLane) -> None:
        """A step is planned and launched while the one before computes, whose result comes next."""
        while not self.stopped:
            self.process_input_requests(self.inbox.receive(wait=self.wait))
            if batch := self.get_next_batch_to_run():
                lane.launch(batch)
                lane.settle(leave=1)
            elif lane.is_busy:
                lane.settle()
            else:
                self.on_idle()

    @property
    def is_idle(self) -> bool:
        """Nothing is left to do, and `on_idle` has seen it: the loop may wait for input."""
        return self._rested and not self.live

    @property
    def wait(self) -> float | None:
        """Seconds for which the loop may wait for input; None: any time."""
        if self.is_idle:
            return None
        if not self._rested:
            return 0.0
        if not self.paused:
            return POLL
        deadline = self.live.next_deadline(self.config.waiting_timeout)
        return None if deadline is None else max(deadline - self._clock(), 0.0)

    def process_input_requests(self, recv_reqs: Sequence[SchedulerInput]) -> None:
        for request in recv_reqs:
            if isinstance(request, GenerateInput):
                self.handle_generate_request(request)
                continue
            self.catch_up()
            match request:
                case AbortInput():
                    self.abort_request(request)
                case ControlInput():
                    answer = self.control.run(request)
                    # First the load, so that whoever reads the answer sees its effect.
                    self.news.report(only_news=True)
                    self.outbox.send(answer)
                case ShutdownInput():
                    self.shut_down()

    def get_next_batch_to_run(self) -> ScheduleBatch | None:
        """New prompts first, then one more token for the running ones: at most one prefill step
        passes between two tokens of an answer.
        """
        late = self.live.late(self._clock(), self.config.waiting_timeout)
        late += [(req, why_invalid(req)) for req in self.live.take_compiled()]
        if late:
            self.catch_up()
        for req, reason in late:
            if not req.finished:
                self._abort(req, reason)
        self.news.report_answers()
        if self.paused:
            return None
        if self._decode_is_due and (batch := self.update_running_batch()):
            return batch
        has_answers = bool(self.running.reqs or self.prefill.joining)
        if (batch := self.get_new_batch_prefill()) is None:
            return self.update_running_batch()
        self._decode_is_due = has_answers and not batch.forward_mode.is_mixed()
        return batch

    def get_new_batch_prefill(self) -> ScheduleBatch | None:
        """The next prompts, and with `--enable-mixed-chunk` a token of each running answer."""

        def plan() -> ScheduleBatch | None:
            riders = self.running.riders(chunk) if self.config.mixed_chunk else []
            return self.prefill.plan(
                self.waiting, self.running.reqs, self.ratio.value, num_mixed=len(riders)
            )

        chunk = self.config.chunked_prefill_size
        batch = plan()
        if self.prefill.blocked is not None:
            victims = self.preemption.make_room(
                self.prefill.blocked, self.running, self.ratio.value, self.catch_up
            )
            self.waiting.put_back(victims)
            self.stats.retracted(victims)
            if victims and batch is None:
                batch = plan()
        self.stats.planned(batch)
        if batch is None or not self.config.mixed_chunk or batch.wants_logprobs:
            return batch
        answers = self.running.batch() if self.running.riders(chunk) else None
        return batch if answers is None else mixed_batch(batch, answers)

    def update_running_batch(self) -> ScheduleBatch | None:
        """One more token per running request; those for which there is no room are retracted."""
        if self.running.fits():
            if self.running.reqs:
                self._decode_is_due = False
            return self.running.batch()
        self.catch_up()
        if not self.running.reqs:
            return None
        self._decode_is_due = False
        others = self.prefill.chunked is not None or bool(self.prefill.joining)
        plan = self.running.plan(others_hold_memory=others)
        self.waiting.put_back(plan.retracted)
        self.stats.retracted(plan.retracted)
        if plan.out_of_memory is not None:
            self.results.end(plan.out_of_memory, outgrown(plan.out_of_memory, self.memory.size))
        return plan.batch

    def run_batch(self, batch: ScheduleBatch) -> GenerationBatchResult:
        """Computes; with overlap in the thread of the lane."""
        self.watchdog.step_begins()
        batch.run_kv_copies()
        return self.worker.forward_batch_generation(batch)

    def process_batch_result(self, batch: ScheduleBatch, result: GenerationBatchResult) -> None:
        self._rested = False
        self.stats.computed(batch)
        self.results.take(batch, result)
        self.news.report()

    def on_idle(self) -> None:
        """Nothing to compute: the moment to check that no memory is lost."""
        self.watchdog.rest()
        for copy in self.memory.take_kv_copies():
            copy()
        self.memory.host_tier.wait_for_storage()
        self.memory.check_integrity(self.live.holders())
        self.ratio.reset()
        self.stats.idled()
        self.news.report(only_news=True)
        self._rested = True

    # ---------------------------------------------------------------- requests

    def handle_generate_request(self, request: GenerateInput) -> None:
        self.stats.received(request)
        self._rested = False
        try:
            if self.stopped:
                raise Refused(str(SHUTTING_DOWN.message), status_code=503)
            if request.rid in self.live:
                raise Refused(f"Duplicate request ID detected: {request.rid}")
            self.adapter_room.check(request)
            whole, turn = self.sessions.extended(request)
            req = admit(whole, self.limits, self.config.priority)
            self.stop_rules.prepare(req)
            if not self.live.can_compile_for(req):
                raise Refused(QUEUE_FULL, status_code=503)
            if not self.live.has_room:
                if (less_urgent := self.priorities.displaced_by(req, self.waiting)) is None:
                    raise Refused(QUEUE_FULL, status_code=503)
                self._abort(less_urgent, DISPLACED)
        except Refused as refused:
            self.stats.refused()
            self.outputs.refused(request.rid, len(request.input_ids), refused.reason)
        else:
            self.sessions.begin(request, turn)
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
        self.news.report()
        self.stopped = True
        if self.lane is not None:
            self.lane.close()

    # ---------------------------------------------------------------- operations

    def flush_cache(self, args: Mapping[str, object]) -> dict[str, object]:
        """Forgets every cached prefix and grammar, unless a request runs or waits.

        Waiting ones do not count while generation is paused: they hold no memory.
        """
        if self.live.holders() or (self.live and not self.paused):
            message = (
                f"The cache was not flushed: {self.live.num_running} requests run and "
                f"{self.live.num_waiting} wait. Try again when they have ended."
            )
            return {"success": False, "message": message}
        self.memory.clear()
        self.grammar_manager.clear()
        self._release_caches()
        for req in self.waiting:
            self.memory.look_up(req)
        return {"success": True, "message": "The cache is flushed."}

    def pause_generation(self, args: Mapping[str, object]) -> dict[str, object]:
        """No step begins until `continue_generation`; requests are accepted, and wait.

        What runs ends (`abort`), gives back its memory and waits (`retract`), or stays where it is
        (`in_place`).
        """
        mode = args.get("mode", "abort")
        if mode not in PAUSE_MODES:
            raise ValueError(f"mode must be one of {', '.join(PAUSE_MODES)}, got {mode!r}")
        if mode == "abort":
            for req in self.live:
                self._abort(req, PAUSED)
        elif mode == "retract":
            retracted = self.prefill.retract_chunked() + self.running.retract_all()
            self.waiting.put_back(retracted)
            self.stats.retracted(retracted)
        self.paused = self.stats.is_paused = True
        return {"message": "Generation paused successfully.", "status": "ok"}

    def continue_generation(self, args: Mapping[str, object]) -> dict[str, object]:
        """Undoes `pause_generation`."""
        if args.get("torch_empty_cache"):
            self._release_caches()
        self.paused = self.stats.is_paused = False
        self._rested = False
        return {"message": "Generation continued successfully.", "status": "ok"}

    def _abort(self, req: Req, reason: FinishReason) -> None:
        self.live.take_out(req)
        self.results.end(req, reason)


def outgrown(req: Req, pool_len: int) -> FinishReason:
    message = (
        f"out of memory: the request outgrew the KV pool of {pool_len} tokens "
        f"after {len(req.output_ids)} new ones"
    )
    return FinishReason(type="abort", message=message, status_code=500)


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
            keep_for_good()
            outbox.send(ready_message(target, server_args, time.monotonic() - start))
            scheduler.run_event_loop()
            scheduler.grammar_manager.close()
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
