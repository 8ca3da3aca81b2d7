"""What happened to one answer, seen from where its news arrives; told to whoever observes."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from sglang.srt.core.messages import FinishReason, GenerateInput, RequestOutput, RequestTimes
    from sglang.srt.observability.latencies import RequestLatencies


@dataclass
class AnswerRecord:
    """An answer that is over. Times are `time.monotonic()`, which the scheduler's are too."""

    wish: "GenerateInput"
    context: Mapping[str, str]  # W3C trace context that the caller sent, by header
    arrival: float
    left: float = 0.0  # when the last message of its request was sent, or the caller was gone
    output_ids: list[int] = field(default_factory=list)  # empty unless an observer reads them
    completion_tokens: int = 0
    cached_tokens: int = 0
    num_retractions: int = 0
    finish: "FinishReason | None" = None  # None: the caller was gone before, or `failure` says why
    failure: str = ""
    times: "RequestTimes | None" = None  # None: refused, or the caller was gone

    @property
    def finish_type(self) -> str:
        if self.finish is not None:
            return self.finish.type
        return "failed" if self.failure else "cancelled"

    @property
    def error(self) -> str:
        """Why there is no whole answer; empty when there is one."""
        if self.finish is None:
            return self.failure or "The caller was gone before the answer ended"
        return (self.finish.message or "aborted") if self.finish.type == "abort" else ""


class AnswerObserver(Protocol):
    reads_ids: bool  # whether records must hold the answer's token ids

    def ended(self, record: AnswerRecord) -> None:
        """Called once per answer, when its request is done with. Must not wait."""


class AnswerWatch:
    """Follows one answer. `close` tells the observers and must be called once."""

    def __init__(
        self,
        record: AnswerRecord,
        latencies: "RequestLatencies | None",
        observers: Sequence[AnswerObserver],
        clock: Callable[[], float],
    ) -> None:
        self._keeps_ids = any(observer.reads_ids for observer in observers)
        self._record = record
        self._latencies = latencies
        self._observers = observers
        self._clock = clock
        self._last_tokens = 0.0

    def progressed(self, output: "RequestOutput") -> None:
        """News that has just come."""
        record = self._record
        if self._keeps_ids:
            record.output_ids += output.token_ids
        record.completion_tokens = output.completion_tokens
        record.cached_tokens = output.cached_tokens
        record.num_retractions = output.num_retractions
        if output.finish is not None:
            record.finish, record.times = output.finish, output.times
        if self._latencies is not None:
            self._measure(self._latencies, output)

    def failed(self, reason: str) -> None:
        """There will be no news any more."""
        self._record.failure = reason

    def close(self) -> None:
        self._record.left = self._clock()
        for observer in self._observers:
            observer.ended(self._record)

    def _measure(self, latencies: "RequestLatencies", output: "RequestOutput") -> None:
        now, new, arrival = self._clock(), len(output.token_ids), self._record.arrival
        if new and not self._last_tokens:
            latencies.first_token(now - arrival)
        elif new:
            latencies.more_tokens(now - self._last_tokens, new)
        if new:
            self._last_tokens = now
        if (
            output.finish is not None and output.times is not None
        ):  # a refusal's length says nothing
            latencies.finished(now - arrival, output.prompt_tokens, output.completion_tokens)
            latencies.passed_stages(output.times)


class Watches:
    """Makes a watch per answer, and none when nobody observes."""

    def __init__(
        self,
        latencies: "RequestLatencies | None",
        observers: Sequence[AnswerObserver],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._latencies = latencies
        self._observers = observers
        self._clock = clock

    def begin(
        self, wishes: "Sequence[GenerateInput]", context: Mapping[str, str]
    ) -> dict[str, AnswerWatch]:
        """By the answers' ids; `context` is the caller's W3C trace context."""
        if self._latencies is None and not self._observers:
            return {}
        now = self._clock()
        return {
            wish.rid: AnswerWatch(
                AnswerRecord(wish, context, arrival=now),
                self._latencies, self._observers, self._clock,
            )
            for wish in wishes
        }  # fmt: skip
