"""What the priorities of requests mean: who goes first, who gives way."""

from collections.abc import Iterable, Sequence

from sglang.srt.core.config import PriorityConfig
from sglang.srt.core.request import Req


class Priorities:
    """Orders requests by urgency. Without priorities all are equally urgent."""

    def __init__(self, config: PriorityConfig) -> None:
        self._config = config
        self._sign = (-1 if config.low_values_first else 1) if config.enabled else 0

    @property
    def enabled(self) -> bool:
        return self._config.enabled

    def urgency(self, req: Req) -> int:
        """The larger, the sooner."""
        given = self._config.default if req.priority is None else req.priority
        return self._sign * given

    def sort(self, reqs: list[Req]) -> None:
        """Most urgent first; equals keep their order."""
        if self._sign:
            reqs.sort(key=self.urgency, reverse=True)

    def least_urgent(self, reqs: Iterable[Req]) -> Req | None:
        """Among equals the last one."""
        found = None
        for req in reqs:
            if found is None or self.urgency(req) <= self.urgency(found):
                found = req
        return found

    def displaced_by(self, req: Req, waiting: Iterable[Req]) -> Req | None:
        """Who leaves a full queue for the request: a waiting one that is less urgent, or nobody.

        An answer that has begun is never lost.
        """
        last = self.least_urgent(one for one in waiting if not one.num_retractions)
        return last if last is not None and self.urgency(last) < self.urgency(req) else None

    def preemptible_by(self, req: Req, running: Sequence[Req]) -> list[Req]:
        """Running requests that give way to the request, least urgent and least advanced first."""
        if not (self.enabled and self._config.preempts):
            return []
        limit = self.urgency(req) - self._config.preemption_threshold
        victims = [one for one in running if self.urgency(one) < limit]
        return sorted(victims, key=lambda one: (self.urgency(one), len(one.output_ids)))
