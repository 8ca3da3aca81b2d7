"""Which requests run when, and how many."""

from dataclasses import dataclass
from typing import Annotated as A

from sglang.srt.arg_groups.declaration import Bound, Choices, Group
from sglang.srt.extension_points import SCHEDULE_POLICIES

GROUP = Group("scheduling")
COUNT = Bound(ge=1)


@dataclass
class SchedulingArgs:
    """Queue, batches, order."""

    max_running_requests: A[
        int | None, GROUP, COUNT, "Most requests in one batch; default: by the KV pool."
    ] = None
    max_queued_requests: A[
        int | None,
        GROUP,
        COUNT,
        "Most waiting requests, more are refused with 503; none: no limit.",
    ] = 4096
    chunked_prefill_size: A[
        int | None,
        GROUP,
        Bound(ge=-1),
        "Prompt tokens per step; -1 computes a prompt at once. Default: 512 on a CPU, else 4096.",
    ] = None
    max_prefill_tokens: A[int, GROUP, COUNT, "Prompt tokens of one prefill batch."] = 16384
    schedule_policy: A[
        str,
        GROUP,
        Choices(lambda: SCHEDULE_POLICIES),
        "Order of waiting requests: fcfs by arrival, lof by the longest allowed answer, lpm and "
        "dfs-weight by what is cached.",
    ] = "fcfs"
    schedule_conservativeness: A[
        float, GROUP, Bound(gt=0, le=100), "Above 1 admits fewer requests and retracts less."
    ] = 1.0


def check_scheduling(args: SchedulingArgs, page_size: int) -> None:
    """ValueError where options of the scheduler contradict each other."""
    chunk = args.chunked_prefill_size or 0
    if chunk == 0:
        raise ValueError("--chunked-prefill-size must be -1 (off) or at least 1, got 0")
    if chunk > 0 and chunk % page_size:
        raise ValueError(
            f"--chunked-prefill-size must be a multiple of --page-size = {page_size}, got {chunk}"
        )
