"""Attention in plain torch operations over the paged KV pool; the reference for other backends."""

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from sglang.kernels.paged_kv import Scoring
from sglang.srt.core.batch import ForwardBatch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend, save_kv
from sglang.srt.layers.attention.gathered_kv import GatheredKV, fits
from sglang.srt.layers.attention.slot_plans import (
    DecodeGroup,
    ExtendPart,
    is_cut,
    plan_decode,
    plan_extend,
)

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention


class TorchNativeAttnBackend(AttentionBackend):
    """Scaled dot product attention; K and V are gathered by slot unless they lie side by side."""

    def __init__(self, kv_bytes_per_token: int) -> None:
        self._kv_bytes_per_token = kv_bytes_per_token
        # By window; of windows that hide nothing in this pass the plan is that of -1.
        self._decode_groups: dict[int, list[DecodeGroup]] = {}
        self._extend_parts: dict[int, list[ExtendPart]] = {}
        self._gathered = GatheredKV()
        self._uses_gathered = False

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        if not forward_batch.forward_mode.is_decode():
            self._gathered.invalidate()
            self._extend_parts = {-1: plan_extend(forward_batch)}
            return
        groups = plan_decode(forward_batch)
        self._decode_groups = {-1: groups}
        slots = groups[0].slots
        self._uses_gathered = len(groups) == 1 and fits(
            slots.num_requests, slots.padded_len, self._kv_bytes_per_token
        )
        if self._uses_gathered:
            table = slots.indices.view(slots.num_requests, slots.padded_len)
            self._gathered.begin(forward_batch, table)
        else:
            self._gathered.invalidate()

    def forget(self) -> None:
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
        **kwargs: Any,
    ) -> torch.Tensor:
        pool = forward_batch.token_to_kv_pool
        if save_kv_cache:
            save_kv(layer, forward_batch, k, v)
        buffers = pool.get_kv_buffer(layer.layer_id)
        # Heads that share a KV head are rows of one product: [batch, kv_heads, group, head_dim].
        heads = q.reshape(q.shape[0], layer.num_kv_heads, -1, layer.head_dim)
        window = layer.sliding_window_size
        cut = window > 0 and is_cut(forward_batch, window)
        if self._uses_gathered and not cut:
            new = (k.view(-1, *buffers[0].shape[1:]), v.view(-1, *buffers[1].shape[1:]))
            keys, values = self._gathered.read(layer.layer_id, buffers, new)
            mask = self._decode_groups[-1][0].mask
            return _attend_by_products(heads, keys, values, mask, layer.scoring)
        attend = _attend_capped if layer.logit_cap > 0 else _attend
        groups = self._groups(forward_batch, window if cut else -1)
        if groups[0].rows is None:  # it is the only one
            keys, values = groups[0].slots.read(buffers, q.dtype)
            return attend(heads, keys, values, groups[0].mask, layer.scoring)
        out = q.new_empty(q.shape[0], layer.num_heads * layer.v_head_dim)
        for group in groups:
            keys, values = group.slots.read(buffers, q.dtype)
            own = heads.index_select(0, group.rows)
            out[group.rows] = attend(own, keys, values, group.mask, layer.scoring)
        return out

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: "RadixAttention",
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        if save_kv_cache:
            save_kv(layer, forward_batch, k, v)
        buffers = forward_batch.token_to_kv_pool.get_kv_buffer(layer.layer_id)
        q = q.view(-1, layer.num_heads, layer.head_dim)
        k = k.view(-1, layer.num_kv_heads, layer.head_dim)
        v = v.view(-1, layer.num_kv_heads, layer.v_head_dim)
        outs = []
        for part in self._parts(forward_batch, layer.sliding_window_size):
            rows = slice(part.start, part.end)
            if part.slots is None:
                keys, values = (x[rows].transpose(0, 1).unsqueeze(0) for x in (k, v))
            else:
                keys, values = part.slots.read(buffers, q.dtype)
            own = q[rows].transpose(0, 1).unsqueeze(0)
            out = _attend_causally(own, keys, values, part.mask, layer.scoring)
            outs.append(out[0].transpose(0, 1).reshape(part.end - part.start, -1))
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _groups(self, forward_batch: ForwardBatch, window: int) -> list[DecodeGroup]:
        if window not in self._decode_groups:
            self._decode_groups[window] = plan_decode(forward_batch, window)
        return self._decode_groups[window]

    def _parts(self, forward_batch: ForwardBatch, window: int) -> list[ExtendPart]:
        if not is_cut(forward_batch, window):
            window = -1
        if window not in self._extend_parts:
            self._extend_parts[window] = plan_extend(forward_batch, window)
        return self._extend_parts[window]


def create_torch_native_backend(runner: Any) -> TorchNativeAttnBackend:
    """The registered factory; works on every device torch knows."""
    return TorchNativeAttnBackend(runner.kv_dims.cell_bytes)


def _attend(
    heads: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scoring: Scoring,
) -> torch.Tensor:
    # heads: [num_requests, kv_heads, group, head_dim], keys and values: [num_requests, kv_heads,
    # padded_len, …] -> [num_requests, num_heads * v_head_dim]
    out = F.scaled_dot_product_attention(heads, keys, values, mask, scale=scoring.scaling)
    return out.reshape(out.shape[0], -1)


def _attend_capped(
    heads: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scoring: Scoring,
) -> torch.Tensor:
    # as _attend
    return _attend_by_products(heads, keys.flatten(0, 1), values.flatten(0, 1), mask, scoring)


def _attend_by_products(
    heads: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scoring: Scoring,
) -> torch.Tensor:
    # heads: [num_requests, kv_heads, group, head_dim], keys and values: [num_requests * kv_heads,
    # padded_len, …] -> [num_requests, num_heads * v_head_dim]
    scores = torch.bmm(heads.flatten(0, 1) * scoring.scaling, keys.transpose(1, 2))
    if scoring.cap > 0:
        scores.div_(scoring.cap).tanh_().mul_(scoring.cap)
    if mask is not None:
        scores.view(*heads.shape[:3], -1).masked_fill_(~mask, -torch.inf)
    shares = torch.softmax(scores, dim=-1, dtype=torch.float32).to(values.dtype)
    return torch.bmm(shares, values).view(len(heads), -1)


def _attend_causally(
    heads: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scoring: Scoring,
) -> torch.Tensor:
    # heads: [1, num_heads, new, head_dim], keys and values: [1, kv_heads, attended, …],
    # mask: [new, attended] or None: the tokens are new, causal -> [1, num_heads, new, v_head_dim]
    if scoring.cap == 0:
        return F.scaled_dot_product_attention(
            heads, keys, values, mask, is_causal=mask is None, scale=scoring.scaling,
            enable_gqa=True,
        )  # fmt: skip
    num_heads, new, attended = *heads.shape[1:3], keys.shape[2]
    if mask is None:
        mask = heads.new_ones(new, attended, dtype=torch.bool).tril_()
    # Heads that share a KV head are rows of one product.
    grouped = heads.reshape(1, keys.shape[1], -1, heads.shape[3])
    rows = mask.repeat(num_heads // keys.shape[1], 1)
    out = _attend_by_products(grouped, keys[0], values[0], rows, scoring)
    return out.view(1, num_heads, new, -1)
