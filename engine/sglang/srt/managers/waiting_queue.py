"""Requests that have no memory yet, in the order in which they will get it."""

from collections.abc import Iterator

from sglang.srt.core.request import Req


class WaitingQueue:
    """A bounded queue. Retracted requests go to its front and are never refused."""

    def __init__(self, limit: int | None) -> None:
        self.reqs: list[Req] = []  # next one first; a schedule policy sorts it in place
        self._limit = limit

    def has_room_beside(self, num_parked: int) -> bool:
        """Whether one more request may wait when so many others will join."""
        return self._limit is None or len(self.reqs) + num_parked < self._limit

    def add(self, req: Req) -> None:
        self.reqs.append(req)

    def put_back(self, retracted: list[Req]) -> None:
        self.reqs[:0] = retracted

    def remove(self, req: Req) -> None:
        self.reqs.remove(req)

    def num_retracted(self) -> int:
        return sum(req.num_retractions > 0 for req in self.reqs)

    def num_uncached_tokens(self) -> int:
        """What the cache would not give, as of the last time that each request was looked up.

        That is its arrival, its retraction, or a later attempt to admit it. With `lpm` it is the
        last prefill batch. What has been cached or evicted since shows only then.
        """
        return sum(req.seq_len - req.found_len for req in self.reqs)

    def __len__(self) -> int:
        return len(self.reqs)

    def __iter__(self) -> Iterator[Req]:
        return iter(self.reqs)
