"""Attention in plain torch operations over the paged KV pool; the reference for other backends."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from sglang.srt.core.batch import ForwardBatch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend, save_kv
from sglang.srt.layers.attention.gathered_kv import GatheredKV, fits

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention

# Requests share one padded product while padding costs less than a product of their own would.
_PADDING_WORTH_A_CALL = 128  # tokens


@dataclass(frozen=True)
class _Slots:
    """Where one or more requests have their K and V: a range of the pool, or gathered rows."""

    indices: torch.Tensor  # [num_requests * padded_len] int64
    start: int | None  # first slot, if the slots are consecutive
    num_requests: int
    padded_len: int

    def read(self, buffer: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """What the pool holds there, in the type that is computed in."""
        # buffer: [slots, kv_heads, head_dim] -> [num_requests, kv_heads, padded_len, head_dim]
        if self.start is not None:
            rows = buffer[self.start : self.start + self.padded_len]
        else:
            rows = buffer.index_select(0, self.indices)
        shape = (self.num_requests, self.padded_len, *buffer.shape[1:])
        return rows.to(dtype).view(shape).transpose(1, 2)


@dataclass(frozen=True)
class _DecodeGroup:
    """Requests of similar length that decode in one product."""

    rows: torch.Tensor | None  # [num_requests] rows of the batch; None: all, in order
    slots: _Slots
    mask: torch.Tensor | None  # [num_requests, 1, 1, padded_len], True where attended


@dataclass(frozen=True)
class _ExtendPart:
    """One request's share of an extend pass."""

    start: int  # rows of the batch
    end: int
    slots: _Slots | None  # None: nothing cached, the new tokens are all there is
    mask: torch.Tensor | None  # [new, prefix + new], True where attended


class TorchNativeAttnBackend(AttentionBackend):
    """Scaled dot product attention; K and V are gathered by slot unless they lie side by side."""

    def __init__(self, kv_bytes_per_token: int) -> None:
        self._kv_bytes_per_token = kv_bytes_per_token
        self._decode_groups: list[_DecodeGroup] = []
        self._extend_parts: list[_ExtendPart] = []
        self._gathered = GatheredKV()
        self._uses_gathered = False

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        if not forward_batch.forward_mode.is_decode():
            self._gathered.invalidate()
            self._extend_parts = _plan_extend(forward_batch)
            return
        self._decode_groups = _plan_decode(forward_batch)
        slots = self._decode_groups[0].slots
        self._uses_gathered = len(self._decode_groups) == 1 and fits(
            slots.num_requests, slots.padded_len, self._kv_bytes_per_token
        )
        if self._uses_gathered:
            table = slots.indices.view(slots.num_requests, slots.padded_len)
            self._gathered.begin(forward_batch, table)
        else:
            self._gathered.invalidate()

    def release(self) -> None:
        self._gathered.release()

    def forward_decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: "RadixAttention",
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
    ) -> torch.Tensor:
        pool = forward_batch.token_to_kv_pool
        if save_kv_cache:
            save_kv(layer, forward_batch, k, v)
        buffers = pool.get_kv_buffer(layer.layer_id)
        # Heads that share a KV head are rows of one product: [batch, kv_heads, group, head_dim].
        heads = q.reshape(q.shape[0], layer.num_kv_heads, -1, layer.head_dim)
        if self._uses_gathered:
            new = (k.view(-1, *buffers[0].shape[1:]), v.view(-1, *buffers[1].shape[1:]))
            keys, values = self._gathered.read(layer.layer_id, buffers, new)
            mask = self._decode_groups[0].mask
            return _attend_by_products(heads, keys, values, mask, layer.scaling)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        for group in self._decode_groups:
            keys, values = (group.slots.read(buffer, q.dtype) for buffer in buffers)
            if group.rows is None:
                return _attend(heads, keys, values, group.mask, layer.scaling)
            own = heads.index_select(0, group.rows)
            out[group.rows] = _attend(own, keys, values, group.mask, layer.scaling)
        return out

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: "RadixAttention",
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
    ) -> torch.Tensor:
        if save_kv_cache:
            save_kv(layer, forward_batch, k, v)
        keys, values = forward_batch.token_to_kv_pool.get_kv_buffer(layer.layer_id)
        q = q.view(-1, layer.num_heads, layer.head_dim)
        k = k.view(-1, layer.num_kv_heads, layer.head_dim)
        v = v.view(-1, layer.num_kv_heads, layer.head_dim)
        outs = []
        for part in self._extend_parts:
            rows = slice(part.start, part.end)
            if part.slots is None:
                part_k, part_v = (x[rows].transpose(0, 1).unsqueeze(0) for x in (k, v))
            else:
                part_k, part_v = (part.slots.read(x, q.dtype) for x in (keys, values))
            out = F.scaled_dot_product_attention(
                q[rows].transpose(0, 1).unsqueeze(0),
                part_k,
                part_v,
                attn_mask=part.mask,
                is_causal=part.mask is None,
                scale=layer.scaling,
                enable_gqa=True,
            )
            outs.append(out[0].transpose(0, 1).reshape(part.end - part.start, -1))
        return outs[0] if len(outs) == 1 else torch.cat(outs)


def create_torch_native_backend(runner: Any) -> TorchNativeAttnBackend:
    """The registered factory; works on every device torch knows."""
    return TorchNativeAttnBackend(runner.kv_dims.cell_bytes)


def _attend(
    heads: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float,
) -> torch.Tensor:
    # heads: [num_requests, kv_heads, group, head_dim], keys and values: [num_requests, kv_heads,
    # padded_len, head_dim] -> [num_requests, num_heads * head_dim]
    out = F.scaled_dot_product_attention(heads, keys, values, attn_mask=mask, scale=scaling)
    return out.reshape(out.shape[0], -1)


def _attend_by_products(
    heads: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float,
) -> torch.Tensor:
    # heads: [num_requests, kv_heads, group, head_dim], keys and values: [num_requests * kv_heads,
    # padded_len, head_dim] -> [num_requests, num_heads * head_dim]
    scores = torch.bmm(heads.flatten(0, 1) * scaling, keys.transpose(1, 2))
    if mask is not None:
        scores.view(*heads.shape[:3], -1).masked_fill_(~mask, -torch.inf)
    shares = torch.softmax(scores, dim=-1, dtype=torch.float32).to(values.dtype)
    return torch.bmm(shares, values).view(len(heads), -1)


# ------------------------------------------------------------------ plans, made once per pass


def _plan_decode(batch: ForwardBatch) -> list[_DecodeGroup]:
    lengths = batch.seq_lens_cpu
    members = _similar_lengths(lengths)
    if len(members) == 1:
        return [_decode_group(batch, None, lengths)]
    return [
        _decode_group(batch, torch.tensor(rows, device=batch.input_ids.device), group_lengths)
        for rows in members
        for group_lengths in [[lengths[row] for row in rows]]
    ]


def _similar_lengths(lengths: list[int]) -> list[list[int]]:
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
    batch: ForwardBatch, rows: torch.Tensor | None, lengths: list[int]
) -> _DecodeGroup:
    longest, shortest = max(lengths), min(lengths)
    requests = batch.req_pool_indices if rows is None else batch.req_pool_indices[rows]
    mask = None
    if shortest < longest:
        device = batch.input_ids.device
        ends = batch.seq_lens if rows is None else batch.seq_lens[rows]
        mask = torch.arange(longest, device=device) < ends.unsqueeze(1)
    table = batch.req_to_token_pool.req_to_token[requests, :longest].long()
    if mask is not None:
        # Beyond a request's end the table holds anything; slot 0 exists always.
        table.mul_(mask)
        mask = mask[:, None, None, :]
    return _DecodeGroup(rows, _slots(table), mask)


def _plan_extend(batch: ForwardBatch) -> list[_ExtendPart]:
    parts = []
    start = 0
    table = batch.req_to_token_pool.req_to_token
    requests = batch.req_pool_indices.tolist()
    for request, prefix, new in zip(
        requests, batch.extend_prefix_lens, batch.extend_seq_lens, strict=True
    ):
        end = start + new
        if prefix == 0:
            parts.append(_ExtendPart(start, end, None, None))
        else:
            slots = _slots(table[request : request + 1, : prefix + new].long())
            mask = torch.ones(new, prefix + new, dtype=torch.bool, device=table.device)
            parts.append(_ExtendPart(start, end, slots, mask.tril_(prefix)))
        start = end
    return parts


def _slots(table: torch.Tensor) -> _Slots:
    # table: [num_requests, padded_len]
    num_requests, padded_len = table.shape
    indices = table.flatten()
    start = None
    if num_requests == 1 and bool((indices[1:] - indices[:-1] == 1).all()):
        start = int(indices[0])
    return _Slots(indices, start, num_requests, padded_len)
