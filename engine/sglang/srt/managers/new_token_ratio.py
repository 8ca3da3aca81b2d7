"""How much of their allowed answer length requests are expected to use."""

from collections.abc import Sequence

from sglang.srt.core.request import Req

INIT_RATIO = 0.7
MIN_SHARE = 0.14  # of the initial ratio
DECAY_STEPS = 600
RETRACTION_LOOKAHEAD = 20  # tokens per request that the next steps may add


class NewTokenRatio:
    """Falls while decoding goes well, rises when a retraction shows that it was too low."""

    def __init__(self, conservativeness: float) -> None:
        self._init = min(INIT_RATIO * conservativeness, 1.0)
        self._min = self._init * MIN_SHARE
        self._decay = (self._init - self._min) / DECAY_STEPS
        self.value = self._init

    def decay(self) -> None:
        """Called per decode step without retraction."""
        self.value = max(self.value - self._decay, self._min)

    def raise_after_retraction(self, kept: Sequence[Req]) -> None:
        """What the requests that go on have produced of what they may."""
        if not kept:
            return
        decoded = sum(len(req.output_ids) for req in kept)
        allowed = sum(req.max_new_tokens for req in kept)
        self.value = min((decoded + RETRACTION_LOOKAHEAD * len(kept)) / (allowed + 1), 1.0)

    def reset(self) -> None:
        """Called when idle."""
        self.value = self._init
