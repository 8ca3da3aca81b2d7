"""Attention by FlashInfer's kernels over the paged KV pool, on CUDA."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from sglang.kernels.paged_kv import Scoring
from sglang.srt.arg_groups.attention import check_attention_backend
from sglang.srt.core.batch import ForwardBatch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend, save_kv

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention

# Partial results of long sequences, which are cut into parts.
_WORKSPACE_BYTES = 384 << 20
# From so many query heads per KV head on the kernel for prompts is the faster one for decoding too.
_GROUP_FOR_TENSOR_CORES = 4


class Pages(NamedTuple):
    """Where the requests of a batch have their tokens; request i has the pages
    indices[indptr[i]] … indices[indptr[i + 1] - 1]. Only `indices` is on the pool's device."""

    indptr: torch.Tensor  # [batch_size + 1] int32
    indices: torch.Tensor  # [indptr[-1]] int32
    last_page_len: torch.Tensor  # [batch_size] int32, tokens in each request's last page


class _Shape(NamedTuple):
    """What layers must have in common to share a plan."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scoring: Scoring
    q_dtype: torch.dtype
    kv_dtype: torch.dtype


def pages_of(table: torch.Tensor, rows: torch.Tensor, lens: Sequence[int], page_size: int) -> Pages:
    """From the slots of tokens to pages: tokens of a page have neighbouring slots."""
    # table: [rows, max_len] slots, rows: [batch_size] rows of the table, lens: tokens per request
    tokens = torch.tensor(lens, dtype=torch.int32)
    num_pages = (tokens + page_size - 1) // page_size
    indptr = starts_of(num_pages.tolist())
    request = torch.arange(len(lens)).repeat_interleave(num_pages)
    page = torch.arange(len(request)) - indptr[:-1].repeat_interleave(num_pages)
    first_token = (page * page_size).to(table.device)
    indices = table[rows[request.to(table.device)], first_token] // page_size
    return Pages(indptr, indices.to(torch.int32), (tokens - 1) % page_size + 1)


def starts_of(lens: Sequence[int]) -> torch.Tensor:
    """Where each one begins if they lie one after the other, and the end."""
    # -> [len(lens) + 1] int32
    ends = torch.tensor(lens, dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return torch.nn.functional.pad(ends, (1, 0))


class FlashInferAttnBackend(AttentionBackend):
    """Layers of one shape share a plan, which is made when the first of them comes by."""

    def __init__(self, device: torch.device) -> None:
        import flashinfer

        self._flashinfer = flashinfer
        # Used by one kernel at a time, whatever wrapper it belongs to.
        self._workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._wrappers: dict[tuple[bool, _Shape], Any] = {}
        self._planned: set[_Shape] = set()
        self._pages: Pages | None = None
        self._starts: torch.Tensor | None = None  # rows of q, per request; None: decode

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        self._planned.clear()
        self._pages = pages_of(
            forward_batch.req_to_token_pool.req_to_token,
            forward_batch.req_pool_indices,
            forward_batch.seq_lens_cpu,
            forward_batch.token_to_kv_pool.page_size,
        )
        is_decode = forward_batch.forward_mode.is_decode()
        self._starts = None if is_decode else starts_of(forward_batch.extend_seq_lens)

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
        if save_kv_cache:
            save_kv(layer, forward_batch, k, v)
        pool = forward_batch.token_to_kv_pool
        keys, values = (
            buffer.view(-1, pool.page_size, *buffer.shape[1:])
            for buffer in pool.get_kv_buffer(layer.layer_id)
        )
        shape = _Shape(
            layer.num_heads, layer.num_kv_heads, layer.head_dim, layer.scoring, q.dtype, keys.dtype
        )
        wrapper = self._planned_wrapper(shape, pool.page_size)
        heads = q.contiguous().view(-1, layer.num_heads, layer.head_dim)
        return wrapper.run(heads, (keys, values)).flatten(1)

    def _planned_wrapper(self, shape: _Shape, page_size: int) -> Any:
        key = (self._starts is None, shape)
        if key not in self._wrappers:
            self._wrappers[key] = self._new_wrapper(shape)
        wrapper = self._wrappers[key]
        if shape not in self._planned:
            self._plan(wrapper, shape, page_size)
            self._planned.add(shape)
        return wrapper

    def _new_wrapper(self, shape: _Shape) -> Any:
        if self._starts is not None:
            return self._flashinfer.BatchPrefillWithPagedKVCacheWrapper(self._workspace, "NHD")
        group = shape.num_heads // shape.num_kv_heads
        return self._flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            self._workspace, "NHD", use_tensor_cores=group >= _GROUP_FOR_TENSOR_CORES
        )

    def _plan(self, wrapper: Any, shape: _Shape, page_size: int) -> None:
        assert self._pages is not None, "init_forward_metadata comes before the layers"
        options: dict[str, Any] = {
            "sm_scale": shape.scoring.scaling,
            # Tokens before the query's own one.
            "window_left": shape.scoring.window - 1 if shape.scoring.window > 0 else -1,
            "logits_soft_cap": shape.scoring.cap or None,
            "q_data_type": shape.q_dtype,
            "kv_data_type": shape.kv_dtype,
        }
        heads = (shape.num_heads, shape.num_kv_heads, shape.head_dim, page_size)
        if self._starts is None:
            wrapper.plan(*self._pages, *heads, **options)
        else:
            wrapper.plan(self._starts, *self._pages, *heads, causal=True, **options)


def create_flashinfer_backend(runner: Any) -> FlashInferAttnBackend:
    """The registered factory; refuses what FlashInfer's kernels do not compute."""
    check_attention_backend("flashinfer", runner.device.type)
    if runner.dtype not in (torch.float16, torch.bfloat16):
        name = str(runner.dtype).removeprefix("torch.")
        raise ValueError(
            f"the attention backend flashinfer computes in float16 or bfloat16, got {name}; set "
            "--dtype, or use the backend triton"
        )
    if runner.kv_dims.latent_rank:
        raise ValueError(
            "the attention backend flashinfer does not attend to latents, which this model keeps "
            "in place of keys and values; use the backend triton"
        )
    return FlashInferAttnBackend(runner.device)
