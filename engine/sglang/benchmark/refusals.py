"""What benchmarks are asked for and do not do, each with what to do instead."""

import argparse
import difflib
from collections.abc import Callable, Collection

NEAR = 0.75  # share of letters in common; less suggests what nobody meant

_IMAGES = "prompts are text; leave the option out."
_PROFILE = (
    "the server has no /start_profile; python -m sglang.bench_one_batch --profile writes a trace "
    "of the model."
)

ABSENT_FLAGS = {
    "--pd-separated": (
        "prefill and decode run in one worker, and every server is measured alike; leave it out."
    ),
    "--mooncake-workload": "no trace is downloaded; --dataset-path names the file of one.",
}

ABSENT_PREFIXES = {"--image-": _IMAGES, "--random-image-": _IMAGES, "--profile": _PROFILE}

_OTHER_API = "its API is not spoken; vllm and vllm-chat measure any server with OpenAI's API"
_OTHER_FILE = "it is not read; custom takes the prompts, a conversation a line"
_WITH_IMAGES = "it has images, and prompts are text"

ABSENT_VALUES = {
    **dict.fromkeys(("trt", "gserver", "truss"), _OTHER_API),
    **dict.fromkeys(("longbench_v2", "speed-bench", "agentic-trace"), _OTHER_FILE),
    **dict.fromkeys(("mmmu", "image"), _WITH_IMAGES),
}


def unknown_argument(argument: str, flags: Collection[str]) -> str:
    """The sentence for something that is no flag of the benchmark."""
    if not argument.startswith("-"):
        return f"unexpected argument {argument!r}; options start with --"
    flag = argument.split("=", 1)[0]
    if reason := _why_absent(flag.replace("_", "-")):
        return f"{flag} does not exist here: {reason}"
    near = nearest(flag, flags)
    hint = f"did you mean {near}?" if near else "--help lists all options"
    return f"unknown option {flag}; {hint}"


def nearest(flag: str, flags: Collection[str]) -> str | None:
    """The flag that was probably meant."""
    by_name = {one.lstrip("-"): one for one in flags}  # the dashes resemble any flag's
    name = flag.split("=", 1)[0].lstrip("-").replace("_", "-")
    near = difflib.get_close_matches(name, by_name, n=1, cutoff=NEAR)
    return by_name[near[0]] if near else None


def chosen_from(choices: Collection[str]) -> Callable[[str], str]:
    """Reads a value that must be one of the choices."""

    def read(text: str) -> str:
        if text in choices:
            return text
        allowed = f"choose from {', '.join(choices)}"
        if reason := ABSENT_VALUES.get(text):
            raise argparse.ArgumentTypeError(f"{text!r}: {reason}; {allowed}")
        near = difflib.get_close_matches(text, choices, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise argparse.ArgumentTypeError(f"{text!r} is unknown; {hint}{allowed}")

    return read


def _why_absent(flag: str) -> str | None:
    if flag in ABSENT_FLAGS:
        return ABSENT_FLAGS[flag]
    return next((text for start, text in ABSENT_PREFIXES.items() if flag.startswith(start)), None)
