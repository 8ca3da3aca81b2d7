"""Samplers by name; plugins add theirs here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from sglang.extension.registry import source_of
from sglang.srt.core.messages import LogprobRows
from sglang.srt.core.request import Req
from sglang.srt.extension_points import SAMPLER_BACKENDS
from sglang.srt.sampling.grammar_mask import GrammarMasks

__all__ = [
    "SAMPLER_BACKENDS",
    "SamplerBackend",
    "SamplerContext",
    "create_sampler",
    "register_sampler_backend",
]

DEFAULT_BACKEND = "pytorch"


@dataclass(frozen=True)
class SamplerContext:
    """What a factory is told."""

    vocab_size: int
    device: torch.device
    random_seed: int | None = None  # of requests without a seed of their own; None: from the OS
    # No token or logprob may depend on the batch, and requests without a seed get a fixed one.
    is_deterministic: bool = False
    # Has begun the masks of constrained rows when a step is sampled; applied last.
    grammar_masks: GrammarMasks = field(default_factory=GrammarMasks)


class SamplerBackend(Protocol):
    """Made once per runner; called once per step."""

    def sample(
        self,
        logits: torch.Tensor,
        reqs: Sequence[Req],
        seq_lens: Sequence[int],
        is_final: Sequence[bool],
    ) -> tuple[list[int], list[LogprobRows | None]]:
        """One token per row and, where wanted, its logprobs under the model's own distribution.

        `seq_lens[i]` is the position of the new token. A row that is not final (its prompt goes
        on) gets any token and no logprobs.
        """
        # logits: [batch_size, vocab]; may be overwritten


SamplerFactory = Callable[[SamplerContext], SamplerBackend]


def register_sampler_backend(backend: str, factory: SamplerFactory) -> None:
    """Adds a choice of `--sampling-backend`. A taken name is replaced, with a warning."""
    SAMPLER_BACKENDS.register(backend, factory, source=source_of(factory), replace=True)


def create_sampler(backend: str | None = None, *, context: SamplerContext) -> SamplerBackend:
    """The sampler of that name, by default the built-in one; an unknown name is a ValueError."""
    sampler: SamplerBackend = SAMPLER_BACKENDS[backend or DEFAULT_BACKEND](context)
    return sampler
