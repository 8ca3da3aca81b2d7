"""What every attention backend offers to the layers of a model."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch

from sglang.srt.core.batch import ForwardBatch

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention


class AttentionBackend(ABC):
    """Made once per runner by a registered factory; used by all layers of all passes."""

    @abstractmethod
    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        """Called by the runner before each pass; prepares what the layers of the pass share.

        `req_to_token_pool` of the batch already holds the slots of the new tokens.
        """

    @abstractmethod
    def forward_decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: "RadixAttention",
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
    ) -> torch.Tensor:
        """One new token per request attends to its whole sequence.

        Writes k and v to `out_cache_loc` first if `save_kv_cache`. Shapes as in `RadixAttention`.
        """

    @abstractmethod
    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: "RadixAttention",
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
    ) -> torch.Tensor:
        """The new tokens of each request attend to its prefix and, causally, to each other.

        Writes k and v to `out_cache_loc` first if `save_kv_cache`. Shapes as in `RadixAttention`.
        """

    def release(self) -> None:  # noqa: B027 (most backends keep nothing)
        """Called between passes: gives back what is kept from pass to pass only for speed."""

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: "RadixAttention",
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
    ) -> torch.Tensor:
        run = self.forward_decode if forward_batch.forward_mode.is_decode() else self.forward_extend
        return run(q, k, v, layer, forward_batch, save_kv_cache=save_kv_cache)


def save_kv(
    layer: "RadixAttention", forward_batch: ForwardBatch, k: torch.Tensor, v: torch.Tensor
) -> None:
    """Writes the new tokens' K and V, shaped as in `RadixAttention`, to their slots."""
    shape = (-1, layer.num_kv_heads, layer.head_dim)
    forward_batch.token_to_kv_pool.set_kv_buffer(
        layer, forward_batch.out_cache_loc, k.view(shape), v.view(shape)
    )
