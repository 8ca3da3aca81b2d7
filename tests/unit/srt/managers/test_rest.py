"""Before the loop waits for input it has looked after its memory."""

from sglang.srt.core.messages import SchedulerInput, ShutdownInput, StepOutput
from tests.unit.srt.managers.engine import Engine, generate, prompt_of


class OneRequestInbox:
    """Gives one request, then nothing; the first wait ends the loop."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.waiting: list[SchedulerInput] = [generate("a", prompt_of(40), 6)]
        self.ratio_at_wait: float | None = None
        self.used_at_wait: int | None = None

    def receive(self, *, wait: float | None) -> list[SchedulerInput]:
        if self.waiting:
            return [self.waiting.pop()]
        if wait is not None:
            return []
        self.ratio_at_wait = self.engine.scheduler.ratio.value
        last = self.engine.outbox.sent[-1]
        assert isinstance(last, StepOutput)
        self.used_at_wait = last.load.num_used_tokens
        return [ShutdownInput()]


def test_the_loop_rests_only_after_it_was_idle() -> None:
    engine = Engine()
    inbox = OneRequestInbox(engine)
    engine.scheduler.inbox = inbox
    checks: list[int] = []
    check = engine.memory.check_integrity
    engine.memory.check_integrity = lambda holders: (checks.append(1), check(holders))[1]
    fresh = engine.scheduler.ratio.value
    engine.scheduler.run_event_loop()
    assert engine.outbox.answers["a"].finish is not None
    assert inbox.used_at_wait == 0
    assert inbox.ratio_at_wait == fresh
    assert len(checks) == 2  # before the wait, and in the turn that ended the loop
