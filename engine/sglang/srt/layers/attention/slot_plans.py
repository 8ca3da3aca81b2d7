"""Where the requests of a pass have their keys and values, worked out once for all layers."""

from dataclasses import dataclass

import torch

from sglang.srt.core.batch import ForwardBatch

# Requests share one padded product while padding costs less than a product of their own would.
_PADDING_WORTH_A_CALL = 128  # tokens


@dataclass(frozen=True)
class Slots:
    """Where one or more requests have their K and V: a range of the pool, or gathered rows."""

    indices: torch.Tensor  # [num_requests * padded_len] int64
    start: int | None  # first slot, if the slots are consecutive
    num_requests: int
    padded_len: int

    @classmethod
    def of(cls, table: torch.Tensor) -> "Slots":
        # table: [num_requests, padded_len]
        num_requests, padded_len = table.shape
        indices = table.flatten()
        start = None
        if num_requests == 1 and bool((indices[1:] - indices[:-1] == 1).all()):
            start = int(indices[0])
        return cls(indices, start, num_requests, padded_len)

    def read(
        self, buffers: tuple[torch.Tensor, torch.Tensor], dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V that the pool holds there, in the type that is computed in."""
        # buffers: [slots, kv_heads, …] -> each [num_requests, kv_heads, padded_len, …]
        keys = self._read(buffers[0], dtype)
        if is_part(buffers):
            return keys, keys[..., : buffers[1].shape[2]]
        return keys, self._read(buffers[1], dtype)

    def _read(self, buffer: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if self.start is not None:
            rows = buffer[self.start : self.start + self.padded_len]
        else:
            rows = buffer.index_select(0, self.indices)
        shape = (self.num_requests, self.padded_len, *buffer.shape[1:])
        rows = rows if rows.dtype == dtype else rows.to(dtype)
        return rows.view(shape).transpose(1, 2)


@dataclass(frozen=True)
class DecodeGroup:
    """Requests of similar length that decode in one product."""

    rows: torch.Tensor | None  # [num_requests] rows of the batch; None: all, in order
    slots: Slots
    mask: torch.Tensor | None  # [num_requests, 1, 1, padded_len], True where attended


@dataclass(frozen=True)
class ExtendPart:
    """One request's share of an extend pass."""

    start: int  # rows of the batch
    end: int
    slots: Slots | None  # None: nothing cached, the new tokens are all there is
    mask: torch.Tensor | None  # [new, attended], True where attended; None: causal


def is_part(buffers: tuple[torch.Tensor, torch.Tensor]) -> bool:
    """Whether values are the first numbers of the keys, and need not be read again."""
    return buffers[0].data_ptr() == buffers[1].data_ptr()


def is_cut(batch: ForwardBatch, window: int) -> bool:
    """Whether a window hides any token of the batch from another."""
    return 0 < window < max(batch.seq_lens_cpu)


def plan_decode(batch: ForwardBatch, window: int = -1) -> list[DecodeGroup]:
    """With a window only that many tokens of each request are read."""
    lengths = batch.seq_lens_cpu
    if window > 0:
        lengths = [min(length, window) for length in lengths]
    members = similar_lengths(lengths)
    if len(members) == 1:
        return [_decode_group(batch, None, lengths, window)]
    return [
        _decode_group(batch, torch.tensor(rows, device=batch.input_ids.device), own, window)
        for rows in members
        for own in [[lengths[row] for row in rows]]
    ]


def similar_lengths(lengths: list[int]) -> list[list[int]]:
    """Rows, longest first, cut where padding to the longest would cost more than a new group."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    groups: list[list[int]] = []
    padding = 0
    for row in order:
        if groups:
            padding += lengths[groups[-1][0]] - lengths[row]
        # A member may be padded by a third of the longest: cheaper than reading in two turns.
        if not groups or padding > max(
            _PADDING_WORTH_A_CALL, len(groups[-1]) * lengths[groups[-1][0]] // 3
        ):
            groups.append([])
            padding = 0
        groups[-1].append(row)
    return groups


def _decode_group(
    batch: ForwardBatch, rows: torch.Tensor | None, lengths: list[int], window: int
) -> DecodeGroup:
    # lengths: of what is read, not of the sequences
    longest, shortest = max(lengths), min(lengths)
    requests = batch.req_pool_indices if rows is None else batch.req_pool_indices[rows]
    ends = batch.seq_lens if rows is None else batch.seq_lens[rows]
    device = batch.input_ids.device
    table = batch.req_to_token_pool.req_to_token
    if window > 0:
        starts = (ends - window).clamp_(min=0).unsqueeze(1)
        places = starts + torch.arange(longest, device=device)
        # Past the end of a short request the table may end too.
        places.clamp_(max=table.shape[1] - 1)
        slots = table[requests.unsqueeze(1), places].long()
        ends = ends.clamp(max=window)
    else:
        slots = table[requests, :longest].long()
    mask = None
    if shortest < longest:
        mask = torch.arange(longest, device=device) < ends.unsqueeze(1)
        # Beyond a request's end the table holds anything; slot 0 exists always.
        slots.mul_(mask)
        mask = mask[:, None, None, :]
    return DecodeGroup(rows, Slots.of(slots), mask)


def plan_extend(batch: ForwardBatch, window: int = -1) -> list[ExtendPart]:
    """With a window nothing is read that lies before the first new token's."""
    parts = []
    start = 0
    table = batch.req_to_token_pool.req_to_token
    requests = batch.req_pool_indices.tolist()
    for request, prefix, new in zip(
        requests, batch.extend_prefix_lens, batch.extend_seq_lens, strict=True
    ):
        end = start + new
        first = max(prefix - window + 1, 0) if window > 0 else 0
        read = prefix + new - first
        cut = 0 < window < read
        mask = None
        if prefix > 0 or cut:
            mask = torch.ones(new, read, dtype=torch.bool, device=table.device)
            mask.tril_(prefix - first)
            if cut:
                mask.triu_(prefix - first - window + 1)
        slots = None
        if prefix > 0:
            slots = Slots.of(table[request : request + 1, first : prefix + new].long())
        parts.append(ExtendPart(start, end, slots, mask))
        start = end
    return parts
