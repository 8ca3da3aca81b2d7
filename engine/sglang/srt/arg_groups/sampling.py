"""How tokens are drawn, and whether the batch may have a say in it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated as A

from sglang.srt.arg_groups.declaration import Choices, Group
from sglang.srt.arg_groups.name_list import NameList
from sglang.srt.extension_points import SAMPLER_BACKENDS

GROUP = Group("sampling")

SAMPLING_BACKEND_CHOICES = NameList(SAMPLER_BACKENDS)
INVARIANT_ATTENTION = "torch_invariant"
DETERMINISTIC_ATTENTION_BACKEND_CHOICES = [INVARIANT_ATTENTION]


def add_deterministic_attention_backend_choices(choices: Iterable[str]) -> None:
    """Names backends whose bits do not depend on the batch, the cache or the chunks."""
    DETERMINISTIC_ATTENTION_BACKEND_CHOICES.extend(choices)


@dataclass
class SamplingArgs:
    """The sampler and deterministic answers."""

    sampling_backend: A[
        str | None,
        GROUP,
        Choices(lambda: SAMPLING_BACKEND_CHOICES),
        "What draws tokens: the built-in sampler, or a plugin's; default: pytorch.",
    ] = None
    enable_deterministic_inference: A[
        bool,
        GROUP,
        "Let no bit of an answer or logprob depend on what else is computed, on cached prefixes or "
        "on chunks; slower, on a CPU only.",
    ] = False


def check_sampling(args: SamplingArgs, device: str, attention_backends: list[str | None]) -> None:
    """ValueError where something would break the promise of determinism.

    `attention_backends` are those of all phases; None is one that was not chosen.
    """
    if not args.enable_deterministic_inference:
        return
    if device != "cpu":
        raise ValueError(
            f"--enable-deterministic-inference needs --device cpu, got {device!r}: no attention "
            "for other devices promises equal bits"
        )
    chosen = {name for name in attention_backends if name is not None}
    varying = chosen.difference(DETERMINISTIC_ATTENTION_BACKEND_CHOICES)
    if varying or len(chosen) > 1:
        allowed = ", ".join(DETERMINISTIC_ATTENTION_BACKEND_CHOICES)
        raise ValueError(
            "--enable-deterministic-inference needs one attention backend for prompts and answers, "
            f"of {allowed}; got {', '.join(sorted(chosen))}. Leave the options of attention out"
        )
