"""An abort is done within two turns of the loop, whatever phase the request is in."""

from collections.abc import Callable

import pytest

from sglang.srt.core.messages import AbortInput, SchedulerInput, ShutdownInput
from sglang.srt.core.request import Req
from sglang.srt.managers.scheduler import Scheduler
from tests.unit.srt.managers.engine import Engine, generate, prompt_of, reference

MOST_TURNS = 2
VICTIM = "victim"


def is_queued(scheduler: Scheduler, req: Req) -> bool:
    return req in scheduler.waiting.reqs


def is_in_chunks(scheduler: Scheduler, req: Req) -> bool:
    return scheduler.prefill.chunked is req and req.kv_committed_len > 0


def is_decoding(scheduler: Scheduler, req: Req) -> bool:
    return req in scheduler.running.reqs and len(req.output_ids) >= 3


PHASES = {"queued": is_queued, "in chunks": is_in_chunks, "decoding": is_decoding}


class Aborting:
    """An inbox that aborts the request in its phase, counts turns until it is gone, and ends."""

    def __init__(self, engine: Engine, reached: Callable[[Scheduler, Req], bool]) -> None:
        self._engine = engine
        self._reached = reached
        self.victim: Req | None = None
        self.turns: int | None = None  # since the abort arrived

    def receive(self, *, wait: float | None) -> list[SchedulerInput]:
        scheduler = self._engine.scheduler
        if self.victim is None:
            req = scheduler.live.get(VICTIM)
            assert req is not None, "the request ended before it came to its phase"
            if not self._reached(scheduler, req):
                return []
            self.victim, self.turns = req, 0
            return [AbortInput(rids=[VICTIM])]
        assert self.turns is not None
        self.turns += 1
        if not self._is_gone(self.victim) and self.turns < 20:
            return []
        return [ShutdownInput()]

    def _is_gone(self, req: Req) -> bool:
        scheduler = self._engine.scheduler
        is_somewhere = (
            VICTIM in scheduler.live
            or req in scheduler.waiting.reqs
            or req in scheduler.running.reqs
            or req is scheduler.prefill.chunked
        )
        holds_memory = req.req_pool_idx is not None or req.last_node is not None
        if is_somewhere or holds_memory or self._engine.outbox.answers[VICTIM].finish is None:
            return False
        # Raises if a page is neither free, nor cached, nor held by those that still run.
        self._engine.memory.check_integrity(scheduler.live.holders())
        return True


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("phase", PHASES)
def test_aborted_request_is_gone_within_two_turns(phase: str, page_size: int, stream: bool) -> None:
    queued = phase == "queued"
    engine = Engine(
        page_size=page_size, chunked_prefill_size=32, max_running_requests=1 if queued else 8
    )
    engine.send(generate("other", prompt_of(20, 1), 200, stream=stream))
    engine.step()
    engine.send(generate(VICTIM, prompt_of(200, 2), 50, stream=stream))
    inbox = engine.scheduler.inbox = Aborting(engine, PHASES[phase])
    engine.scheduler.run_event_loop()
    assert inbox.turns is not None and inbox.turns <= MOST_TURNS
    answer = engine.outbox.answers[VICTIM]
    assert answer.finish is not None and answer.finish.type == "abort"
    assert answer.token_ids == reference(prompt_of(200, 2), len(answer.token_ids))
    assert len(answer.outputs) == 1 or stream
    assert engine.used() == 0
