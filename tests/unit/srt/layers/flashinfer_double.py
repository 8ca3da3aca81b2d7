"""Stands in for the package flashinfer where there is no GPU: the part of its interface that we
use, as version 0.7 documents it, computed in torch."""

from dataclasses import dataclass
from typing import Any

import torch

from sglang.kernels.paged_kv import Scoring


@dataclass
class Plan:
    """What a wrapper was told about a pass."""

    q_starts: torch.Tensor
    indptr: torch.Tensor
    indices: torch.Tensor
    last_page_len: torch.Tensor
    heads: tuple[int, int, int]
    page_size: int
    scoring: Scoring
    dtypes: tuple[torch.dtype, torch.dtype]

    def __post_init__(self) -> None:
        tensors = (self.q_starts, self.indptr, self.indices, self.last_page_len)
        assert all(tensor.dtype == torch.int32 for tensor in tensors)
        assert len(self.indices) == self.indptr[-1]
        assert len(self.indptr) == len(self.last_page_len) + 1 == len(self.q_starts)
        assert 1 <= self.last_page_len.min() <= self.last_page_len.max() <= self.page_size

    def attend(self, q: torch.Tensor, kv: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        num_heads, kv_heads, head_dim = self.heads
        assert q.is_contiguous() and q.shape[1:] == (num_heads, head_dim)
        assert (q.dtype, kv[0].dtype) == self.dtypes
        assert kv[0].shape[1:] == (self.page_size, kv_heads, head_dim)
        out = torch.empty_like(q)
        for request, last in enumerate(self.last_page_len.tolist()):
            pages = self.indices[self.indptr[request] : self.indptr[request + 1]].long()
            length = (len(pages) - 1) * self.page_size + last
            keys, values = (
                x[pages].flatten(0, 1)[:length].repeat_interleave(num_heads // kv_heads, 1)
                for x in kv
            )
            rows = slice(int(self.q_starts[request]), int(self.q_starts[request + 1]))
            scores = self.scoring.of(torch.einsum("qhd,khd->hqk", q[rows], keys))
            hidden = self.scoring.hidden(scores.shape[1], length, q.device)
            shares = torch.softmax(scores.masked_fill(hidden, -torch.inf), -1)
            out[rows] = torch.einsum("hqk,khd->qhd", shares, values)
        return out


def scoring_of(sm_scale: float | None, window_left: int, logits_soft_cap: float | None) -> Scoring:
    assert sm_scale is not None
    return Scoring(sm_scale, window_left + 1 if window_left >= 0 else -1, logits_soft_cap or 0.0)


class BatchDecodeWithPagedKVCacheWrapper:
    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD",
                 use_cuda_graph: bool = False, use_tensor_cores: bool = False) -> None:  # fmt: skip
        assert float_workspace_buffer.dtype == torch.uint8 and kv_layout == "NHD"
        self.use_tensor_cores = use_tensor_cores

    def plan(  # noqa: PLR0913 (the package's signature)
        self, indptr: torch.Tensor, indices: torch.Tensor, last_page_len: torch.Tensor,
        num_qo_heads: int, num_kv_heads: int, head_dim: int, page_size: int, *,
        window_left: int = -1, logits_soft_cap: float | None = None,
        q_data_type: Any = "float16", kv_data_type: Any = None, sm_scale: float | None = None,
    ) -> None:  # fmt: skip
        assert num_qo_heads // num_kv_heads in (1, 2, 3, 8) or self.use_tensor_cores
        CALLS.append("plan decode")
        self._plan = Plan(
            torch.arange(len(indptr), dtype=torch.int32), indptr, indices, last_page_len,
            (num_qo_heads, num_kv_heads, head_dim), page_size,
            scoring_of(sm_scale, window_left, logits_soft_cap), (q_data_type, kv_data_type),
        )  # fmt: skip

    def run(self, q: torch.Tensor, paged_kv_cache: Any) -> torch.Tensor:
        return self._plan.attend(q, paged_kv_cache)


class BatchPrefillWithPagedKVCacheWrapper:
    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD") -> None:
        assert float_workspace_buffer.dtype == torch.uint8 and kv_layout == "NHD"

    def plan(  # noqa: PLR0913 (the package's signature)
        self, qo_indptr: torch.Tensor, paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor, paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int, num_kv_heads: int, head_dim_qk: int, page_size: int, *,
        causal: bool = False, sm_scale: float | None = None, window_left: int = -1,
        logits_soft_cap: float | None = None, q_data_type: Any = "float16",
        kv_data_type: Any = None,
    ) -> None:  # fmt: skip
        assert causal
        CALLS.append("plan prefill")
        self._plan = Plan(
            qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len,
            (num_qo_heads, num_kv_heads, head_dim_qk), page_size,
            scoring_of(sm_scale, window_left, logits_soft_cap), (q_data_type, kv_data_type),
        )  # fmt: skip

    def run(self, q: torch.Tensor, paged_kv_cache: Any) -> torch.Tensor:
        return self._plan.attend(q, paged_kv_cache)


CALLS: list[str] = []
