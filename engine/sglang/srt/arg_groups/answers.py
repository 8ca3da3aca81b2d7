"""How answers are made where a request does not say it."""

import json
from dataclasses import dataclass
from typing import Annotated as A

from sglang.srt.arg_groups.declaration import Alias, Bound, Choices, Group

GROUP = Group("answers")


@dataclass
class AnswerArgs:
    """Sampling, streaming."""

    preferred_sampling_params: A[
        str | None, GROUP, "JSON object of sampling parameters for what a request leaves out."
    ] = None
    sampling_defaults: A[
        str,
        GROUP,
        Choices.of("model", "openai"),
        "Where defaults come from: the model's generation_config, or OpenAI's.",
    ] = "model"
    stream_interval: A[int, GROUP, Bound(ge=1), "New tokens per streamed message."] = 1
    enable_custom_logit_processor: A[
        bool,
        GROUP,
        Alias("--custom-logit-processor"),
        "Executes logit processors that requests upload: code of whoever can send requests. "
        "Registered ones may be used by name without it.",
    ] = False
    random_seed: A[
        int | None,
        GROUP,
        Bound(ge=0),
        "Seed of sampling without a seed of its own; default: random.",
    ] = None


def check_answers(args: AnswerArgs) -> None:
    """ValueError where a text is not what it should hold."""
    try:
        preferred = json.loads(args.preferred_sampling_params or "{}")
    except json.JSONDecodeError as error:
        raise ValueError(f"--preferred-sampling-params is not JSON: {error}") from None
    if not isinstance(preferred, dict):
        raise ValueError(f"--preferred-sampling-params must be a JSON object, got {preferred!r}")
