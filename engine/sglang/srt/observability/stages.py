"""The stages that a request went through, from the times that the scheduler noted."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang.srt.core.messages import RequestTimes

GRAMMAR, QUEUE, PREFILL, DECODE = STAGES = ("grammar", "queue", "prefill", "decode")


@dataclass(frozen=True)
class Stage:
    """Times are those of `RequestTimes`."""

    name: str
    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


def stages_of(times: "RequestTimes") -> list[Stage]:
    """One after the other, without gaps. What a request did not reach is missing.

    A retracted request stays in the stage that the retraction interrupts.
    """
    stages, queued = [], times.received
    if times.compiled is not None:
        stages.append(Stage(GRAMMAR, times.received, times.compiled))
        queued = times.compiled
    if not times.admissions:
        return [*stages, Stage(QUEUE, queued, times.finished)]
    admitted = times.admissions[0]
    stages.append(Stage(QUEUE, queued, admitted))
    if times.prefilled is None:
        return [*stages, Stage(PREFILL, admitted, times.finished)]
    return [
        *stages,
        Stage(PREFILL, admitted, times.prefilled),
        Stage(DECODE, times.prefilled, times.finished),
    ]
