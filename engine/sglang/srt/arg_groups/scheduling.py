"""Which requests run when, and how many."""

from dataclasses import dataclass
from typing import Annotated as A

from sglang.srt.arg_groups.declaration import Bound, Choices, Group, Needs
from sglang.srt.extension_points import SCHEDULE_POLICIES

GROUP = Group("scheduling")
COUNT = Bound(ge=1)
PRIORITIES = Bound(ge=-(1 << 31), le=(1 << 31) - 1)  # what a request's priority may be
BESIDE_PRIORITIES = ("fcfs", "lof", "routing-key", "priority")


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
        "dfs-weight by what is cached, routing-key by what runs, priority by urgency.",
    ] = "fcfs"
    schedule_conservativeness: A[
        float, GROUP, Bound(gt=0, le=100), "Above 1 admits fewer requests and retracts less."
    ] = 1.0
    enable_priority_scheduling: A[
        bool, GROUP, "More urgent requests run first; --schedule-policy orders equals."
    ] = False
    schedule_low_priority_values_first: A[
        bool,
        GROUP,
        Needs("enable_priority_scheduling"),
        "Smaller priorities are the more urgent ones.",
    ] = False
    default_priority_value: A[
        int | None,
        GROUP,
        Needs("enable_priority_scheduling"),
        PRIORITIES,
        "Priority of a request that names none; default: 0.",
    ] = None
    disable_priority_preemption: A[
        bool,
        GROUP,
        Needs("enable_priority_scheduling"),
        "Running requests are never pushed out by more urgent ones.",
    ] = False
    priority_scheduling_preemption_threshold: A[
        int,
        GROUP,
        Needs("enable_priority_scheduling"),
        Bound(ge=0),
        "Running requests give way to those more urgent by more than this.",
    ] = 10
    abort_on_priority_when_disabled: A[
        bool, GROUP, "Refuse requests with a priority unless --enable-priority-scheduling."
    ] = False
    retraction_policy: A[
        str,
        GROUP,
        Needs("enable_priority_scheduling"),
        Choices.of("length", "priority"),
        "Who gives up memory first when it is short: the shortest answer, or the least urgent.",
    ] = "length"
    enable_mixed_chunk: A[
        bool, GROUP, "Running answers grow by a token in each pass that computes prompts."
    ] = False
    disable_overlap_schedule: A[
        bool, GROUP, "Plan a step only when the one before has been computed."
    ] = False


def fill_scheduling(args: SchedulingArgs) -> None:
    """The order by priority is nothing without priorities."""
    if args.schedule_policy == "priority":
        args.enable_priority_scheduling = True


def check_scheduling(args: SchedulingArgs, page_size: int) -> None:
    """ValueError where options of the scheduler contradict each other."""
    chunk = args.chunked_prefill_size or 0
    if chunk == 0:
        raise ValueError("--chunked-prefill-size must be -1 (off) or at least 1, got 0")
    if chunk > 0 and chunk % page_size:
        raise ValueError(
            f"--chunked-prefill-size must be a multiple of --page-size = {page_size}, got {chunk}"
        )
    if args.enable_priority_scheduling and args.schedule_policy not in BESIDE_PRIORITIES:
        raise ValueError(
            f"--schedule-policy must be one of {', '.join(BESIDE_PRIORITIES)} with "
            f"--enable-priority-scheduling, got {args.schedule_policy}"
        )
