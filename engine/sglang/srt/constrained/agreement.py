"""Lets the ranks of a group agree on which requests go on: they compile by themselves."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

MESSAGE_BYTES = 1024  # of the reason of a failure that the other ranks get to know


class State(IntEnum):
    """How far a constraint is; from REFUSED on it has failed."""

    PENDING = 0
    READY = 1
    REFUSED = 2
    NEVER_COMPILED = 3


@dataclass(frozen=True)
class Opinion:
    """What one rank, or all of them, know of a constraint."""

    state: State
    message: str = ""  # why it failed


class RankAgreement:
    """The opinions of all ranks of a group with a CPU backend become one.

    Ready is what is ready everywhere; failed is what has failed anywhere. Every rank asks at the
    same moments about the same requests in the same order.
    """

    def __init__(self, group: Any) -> None:
        self._group = group

    def agree(self, rids: Sequence[str], own: Sequence[Opinion]) -> list[Opinion]:
        """One opinion per request, the same on all ranks."""
        import torch

        mark = zlib.crc32("\0".join(rids).encode())
        states = torch.tensor([mark, *(opinion.state for opinion in own)], dtype=torch.int64)
        by_rank = self._gather(states)  # [ranks, 1 + requests]
        assert bool((by_rank[:, 0] == mark).all()), f"ranks wait for other requests than {rids}"
        found = by_rank[:, 1:]
        failed = [index for index, row in enumerate(found.T) if bool((row >= State.REFUSED).any())]
        messages = self._messages([own[index].message for index in failed])
        agreed = [Opinion(State(int(row.min()))) for row in found.T]
        for place, index in enumerate(failed):
            # The lowest rank that has failed speaks for all.
            rank = int((found[:, index] >= State.REFUSED).int().argmax())
            agreed[index] = Opinion(State(int(found[rank, index])), messages[rank][place])
        return agreed

    def _messages(self, own: Sequence[str]) -> list[list[str]]:
        """What each rank says of those that have failed somewhere."""
        import torch

        if not own:
            return []
        rows = torch.zeros(len(own), MESSAGE_BYTES, dtype=torch.uint8)
        for row, message in zip(rows, own, strict=True):
            text = message.encode(errors="replace")[:MESSAGE_BYTES]
            row[: len(text)] = torch.frombuffer(bytearray(text or b"\0"), dtype=torch.uint8)[
                : len(text)
            ]
        return [
            [bytes(row.tolist()).rstrip(b"\0").decode(errors="ignore") for row in rank]
            for rank in self._gather(rows)
        ]

    def _gather(self, own: "torch.Tensor") -> "torch.Tensor":
        """[ranks, …] of equally shaped tensors."""
        import torch
        import torch.distributed as dist

        by_rank = [torch.empty_like(own) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(by_rank, own, group=self._group)
        return torch.stack(by_rank)
