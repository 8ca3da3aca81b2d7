"""In which order waiting requests are admitted."""

from sglang.srt.core.request import Req
from sglang.srt.extension_points import SCHEDULE_POLICIES
from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache
from sglang.srt.mem_cache.request_memory import find_prefix

# Matching every waiting request each step costs more than a better order brings.
MAX_MATCHED_QUEUE = 128


class SchedulePolicy:
    """One named order, applied to the queue before each prefill batch."""

    def __init__(self, policy: str, tree_cache: BasePrefixCache) -> None:
        order = SCHEDULE_POLICIES.get(policy, None)
        if order is None:
            known = ", ".join(SCHEDULE_POLICIES.names())
            raise ValueError(f"Unknown schedule_policy: schedule_policy={policy!r}; known: {known}")
        self.policy = policy
        self._order = order
        self._tree_cache = tree_cache

    def calc_priority(self, waiting_queue: list[Req]) -> None:
        """Sorts the queue in place, next request first."""
        self._order(waiting_queue, self._tree_cache)


def arrival_order(waiting: list[Req], tree_cache: BasePrefixCache) -> None:
    """fcfs: the queue is in this order already."""


def longest_prefix_first(waiting: list[Req], tree_cache: BasePrefixCache) -> None:
    """lpm: arrival order among equals, when nothing is cached, and in long queues."""
    if tree_cache.is_chunk_cache() or len(waiting) > MAX_MATCHED_QUEUE:
        return
    for req in waiting:
        find_prefix(req, tree_cache)
    waiting.sort(key=lambda req: -req.found_len)
