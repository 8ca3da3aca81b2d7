"""Attention in torch operations whose bits do not depend on the batch, the cache or the chunks."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from sglang.srt.core.batch import ForwardBatch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend, save_kv

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention

# Queries of one product. A decoding request fills a tile with queries that nobody reads.
_TILE = 4
# Keys of one product. A request's blocks start with its first token, whatever is cached.
_BLOCK = 128


@dataclass(frozen=True)
class _Part:
    """Tiles of queries over one table of keys: one request's, or the decoding requests' with a
    tile and a row of the table each."""

    queries: torch.Tensor  # [num_tiles, _TILE] rows of the batch
    positions: torch.Tensor  # [num_tiles, _TILE] places of the queries in their texts
    slots: torch.Tensor  # [1 or num_tiles, padded_len], padded_len a multiple of _BLOCK
    # Where each result is: its row of the batch, its tile, its place in the tile.
    rows: torch.Tensor  # [num_queries]
    tiles: torch.Tensor  # [num_queries]
    places: torch.Tensor  # [num_queries]
    first_tiles: list[int]  # per block: tiles before this one lie before all its keys


class TorchInvariantAttnBackend(AttentionBackend):
    """Softmax over fixed blocks of keys in float32: every product has the same shape, and sums
    go from a text's first block to its last. What is masked adds exact zeros.
    """

    def __init__(self) -> None:
        self._parts: list[_Part] = []

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        if forward_batch.forward_mode.is_decode():
            self._parts = [_decode_part(forward_batch)]
        else:
            self._parts = _extend_parts(forward_batch)

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: "RadixAttention",
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        if kwargs:
            raise ValueError(f"attention backend torch_invariant knows no {', '.join(kwargs)}")
        if save_kv_cache:
            save_kv(layer, forward_batch, k, v)
        buffers = forward_batch.token_to_kv_pool.get_kv_buffer(layer.layer_id)
        group = layer.num_heads // layer.num_kv_heads
        # heads: [num_kv_heads, num_tokens, group, head_dim]
        heads = q.float().view(len(q), layer.num_kv_heads, group, layer.head_dim).transpose(0, 1)
        heads = heads * layer.scaling
        out = q.new_empty(len(q), layer.num_heads * layer.v_head_dim)
        for part in self._parts:
            out[part.rows] = self._attend(heads, part, buffers, layer).to(q.dtype)
        return out

    def _attend(
        self,
        heads: torch.Tensor,
        part: _Part,
        buffers: tuple[torch.Tensor, torch.Tensor],
        layer: "RadixAttention",
    ) -> torch.Tensor:
        # heads: [num_kv_heads, num_tokens, group, head_dim]
        # -> [num_queries, num_heads * v_head_dim]
        num_tables, padded_len = part.slots.shape
        num_tiles = len(part.queries)
        outs = []
        for head, own in enumerate(heads):
            tiles = own[part.queries].flatten(1, 2)  # [num_tiles, _TILE * group, head_dim]
            keys, values = (
                buffer[:, head][part.slots.flatten()].float().view(num_tables, padded_len, -1)
                for buffer in buffers
            )
            keys, values = keys.expand(num_tiles, -1, -1), values.expand(num_tiles, -1, -1)
            scores = _scores(tiles, keys, part, layer)
            summed = _summed(torch.softmax(scores, dim=-1), values, part)
            places = summed.view(num_tiles, _TILE, -1, layer.v_head_dim)
            outs.append(places[part.tiles, part.places])
        return torch.cat(outs, 1).flatten(1)


def create_torch_invariant_backend(runner: Any) -> TorchInvariantAttnBackend:
    """The registered factory; for CPUs, whose libraries its promise was measured with."""
    return TorchInvariantAttnBackend()


def _scores(
    tiles: torch.Tensor, keys: torch.Tensor, part: _Part, layer: "RadixAttention"
) -> torch.Tensor:
    # tiles: [num_tiles, rows, head_dim], keys: [num_tiles, padded_len, head_dim]
    # -> [num_tiles, rows, padded_len]
    num_tiles, num_rows, _ = tiles.shape
    padded_len = keys.shape[1]
    scores = tiles.new_full((num_tiles, num_rows, padded_len), -torch.inf)
    for start, first in zip(range(0, padded_len, _BLOCK), part.first_tiles, strict=True):
        block = slice(start, start + _BLOCK)
        scores[first:, :, block] = torch.bmm(tiles[first:], keys[first:, block].transpose(1, 2))
    if layer.logit_cap > 0:
        # tanh from exp, which has no other bits in scalar code.
        scores = layer.logit_cap * (1 - 2 / ((scores * (2 / layer.logit_cap)).exp() + 1))
    columns = torch.arange(padded_len, device=scores.device)
    last = part.positions.repeat_interleave(num_rows // _TILE, dim=1).unsqueeze(-1)
    masked = columns > last
    if layer.sliding_window_size > 0:
        masked |= columns <= last - layer.sliding_window_size
    return scores.masked_fill_(masked, -torch.inf)


def _summed(shares: torch.Tensor, values: torch.Tensor, part: _Part) -> torch.Tensor:
    # shares: [num_tiles, rows, padded_len], values: [num_tiles, padded_len, v_head_dim]
    # -> [num_tiles, rows, v_head_dim]
    total = shares.new_zeros(*shares.shape[:2], values.shape[2])
    for start, first in zip(range(0, shares.shape[2], _BLOCK), part.first_tiles, strict=True):
        block = slice(start, start + _BLOCK)
        total[first:] += torch.bmm(shares[first:, :, block].contiguous(), values[first:, block])
    return total


# ------------------------------------------------------------------ plans, made once per pass


def _decode_part(batch: ForwardBatch) -> _Part:
    lengths = batch.seq_lens_cpu
    rows = torch.arange(len(lengths), device=batch.input_ids.device)
    ends = batch.seq_lens.unsqueeze(1)
    slots = _slots(batch, batch.req_pool_indices, max(lengths))
    # Beyond a request's end its table holds anything; slot 0 exists always.
    slots = slots * (torch.arange(slots.shape[1], device=rows.device) < ends)
    return _Part(
        queries=rows.unsqueeze(1).expand(-1, _TILE),
        positions=(ends - 1).expand(-1, _TILE),
        slots=slots,
        rows=rows,
        tiles=rows,
        places=torch.zeros_like(rows),
        first_tiles=[0] * (slots.shape[1] // _BLOCK),
    )


def _extend_parts(batch: ForwardBatch) -> list[_Part]:
    parts = []
    start = 0
    lengths = zip(batch.extend_prefix_lens, batch.extend_seq_lens, strict=True)
    for request, (prefix, new) in enumerate(lengths):
        places = torch.arange(new, device=batch.input_ids.device)
        filled = torch.arange(-(-new // _TILE) * _TILE, device=places.device).clamp_(max=new - 1)
        table = batch.req_pool_indices[request : request + 1]
        slots = _slots(batch, table, prefix + new)
        parts.append(
            _Part(
                queries=(filled + start).view(-1, _TILE),
                positions=(filled + prefix).view(-1, _TILE),
                slots=slots,
                rows=places + start,
                tiles=places // _TILE,
                places=places % _TILE,
                first_tiles=[
                    max(block - prefix, 0) // _TILE for block in range(0, slots.shape[1], _BLOCK)
                ],
            )
        )
        start += new
    return parts


def _slots(batch: ForwardBatch, requests: torch.Tensor, longest: int) -> torch.Tensor:
    """Slots of the requests' tokens, filled up with slot 0 to whole blocks."""
    # -> [num_requests, padded_len]
    table = batch.req_to_token_pool.req_to_token[requests, :longest].long()
    return torch.nn.functional.pad(table, (0, -longest % _BLOCK))
