"""What one forward pass computes on."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from sglang.srt.core.messages import LogprobRows

if TYPE_CHECKING:
    import torch

    from sglang.srt.core.request import Req


class ForwardMode(Enum):
    EXTEND = auto()  # several new tokens per request: a prompt, or a chunk of one
    DECODE = auto()  # one new token per request
    MIXED = auto()  # prompts first, then requests with one new token each; computed like EXTEND

    def is_decode(self) -> bool:
        return self is ForwardMode.DECODE

    def is_extend(self) -> bool:
        return self is not ForwardMode.DECODE

    def is_mixed(self) -> bool:
        return self is ForwardMode.MIXED


@dataclass
class ForwardBatch:
    """Flat tensors of one pass: the new tokens of all requests, one request after the other.

    `num_tokens` = sum of `extend_seq_lens` (extend) or the batch size (decode). `seq_lens` counts
    what stands in the KV pool after the pass. The runner sets the last three fields.
    """

    forward_mode: ForwardMode
    input_ids: "torch.Tensor"  # [num_tokens] int64
    positions: "torch.Tensor"  # [num_tokens] int64
    req_pool_indices: "torch.Tensor"  # [batch_size] int64, rows of req_to_token
    seq_lens: "torch.Tensor"  # [batch_size] int64
    seq_lens_cpu: list[int]
    out_cache_loc: "torch.Tensor"  # [num_tokens] int64, KV slots of the new tokens
    extend_prefix_lens: list[int] = field(
        default_factory=list
    )  # extend: tokens already in the pool
    extend_seq_lens: list[int] = field(default_factory=list)  # extend: new tokens per request
    # First new token (relative to the chunk) whose *prediction of its successor* must be reported
    # as a prompt logprob; equal to the chunk's length when none.
    extend_logprob_start_lens: list[int] = field(default_factory=list)
    is_final: list[bool] = field(default_factory=list)  # [batch_size]: the row's token counts
    lora_ids: list[str | None] = field(default_factory=list)  # [batch_size]: adapter, None: base
    req_to_token_pool: Any = None
    token_to_kv_pool: Any = None
    attn_backend: Any = None

    @property
    def batch_size(self) -> int:
        return len(self.seq_lens_cpu)


FUTURE = -1  # stands for a token that the pass before chooses


@dataclass
class BatchLayout:
    """What a pass reads of its requests, copied when it is planned: they move on while it runs."""

    input_ids: list[int]  # [num_tokens], some of them FUTURE
    positions: list[int]  # [num_tokens]
    rows: list[int]  # [batch_size], of req_to_token
    seq_lens: list[int]  # [batch_size]
    logprob_starts: list[int]  # [batch_size], as `extend_logprob_start_lens`
    is_final: list[bool]  # [batch_size]: no part of the prompt is left for later passes
    futures: "dict[int, Req]" = field(default_factory=dict)  # FUTURE's index → whose newest token


@dataclass
class ScheduleBatch:
    """The scheduler's choice for one step; turned into a `ForwardBatch` by the worker.

    Made by `sglang.srt.managers.batch_layout`. The first `num_prompts` requests compute prompts or
    chunks, the others one token each.
    """

    reqs: "list[Req]"
    forward_mode: ForwardMode
    out_cache_loc: "torch.Tensor"  # [num_tokens] int64
    layout: BatchLayout
    num_prompts: int = 0
    extend_prefix_lens: list[int] = field(default_factory=list)
    extend_seq_lens: list[int] = field(default_factory=list)
    # Copies between tiers of the KV cache that have to be done, in order, before the pass.
    kv_copies: list[Callable[[], None]] = field(default_factory=list)
    # Set when the requests have taken in the tokens of the pass before; None: they have.
    history_ready: threading.Event | None = None

    @property
    def batch_size(self) -> int:
        return len(self.reqs)

    @property
    def wants_logprobs(self) -> bool:
        return any(req.return_logprob for req in self.reqs)

    def wait_for_history(self) -> None:
        """Called between logits and sampling, which may read what the requests have written."""
        if self.history_ready is not None:
            self.history_ready.wait()

    def run_kv_copies(self) -> None:
        for copy in self.kv_copies:
            copy()


@dataclass
class GenerationBatchResult:
    """Answer of the worker. Rows are in the batch's order of requests.

    `next_token_ids[i]` of a request whose prompt is not yet complete is meaningless and ignored.
    """

    next_token_ids: list[int]
    output_logprobs: list[LogprobRows | None]  # one new position each, for requests that want them
    input_logprobs: list[LogprobRows | None]  # the prompt positions that this pass computed
    embeddings: list[list[float]] | None = None  # of a model that embeds: its rows, and no tokens
