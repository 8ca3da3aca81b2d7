"""What `--speculative-algorithm` may name, and what the named algorithm says of the options."""

import importlib
import logging
from dataclasses import dataclass
from typing import Annotated as A
from typing import Any

from sglang.srt.arg_groups.declaration import Group
from sglang.srt.extension_points import SPECULATIVE_ALGORITHMS, SPECULATIVE_NAMES

logger = logging.getLogger(__name__)
GROUP = Group("speculative decoding")
FLAG = "--speculative-algorithm"


@dataclass
class SpeculativeArgs:
    """Which algorithm drafts tokens."""

    speculative_algorithm: A[
        str | None,
        GROUP,
        "Speculative decoding by an algorithm that a plugin registered; default: none.",
    ] = None


def apply_speculative_algorithm(args: Any) -> None:
    """Lets a plugin's algorithm look at the options, and set those that it needs.

    ValueError for a name that nobody serves.
    """
    name = args.speculative_algorithm
    if name is None:
        return
    names = importlib.import_module(SPECULATIVE_NAMES)
    registered = ", ".join(SPECULATIVE_ALGORITHMS.names()) or "none"
    try:
        algorithm = names.SpeculativeAlgorithm.from_string(name)
    except ValueError as error:
        raise ValueError(f"{FLAG}: {error}; registered by plugins: {registered}") from None
    if isinstance(algorithm, names.SpeculativeAlgorithm):
        if algorithm.is_some():
            why = names.not_served(name)
            raise ValueError(f"{FLAG}: {why}; registered by plugins: {registered}")
        return
    if args.enable_mixed_chunk:
        logger.warning("--enable-mixed-chunk is off: drafts and prompts need passes of their own.")
        args.enable_mixed_chunk = False
    if algorithm.validate_server_args is not None:
        algorithm.validate_server_args(args)
