"""What every attention backend offers to the layers of a model."""

from abc import ABC
from typing import TYPE_CHECKING, Any

import torch

from sglang.srt.core.batch import ForwardBatch

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention


class AttentionBackend(ABC):  # noqa: B024 (which methods it needs depends on each other)
    """Made once per runner by a registered factory; used by all layers of all passes.

    A backend overrides `forward`, or what `forward` chooses from: `forward_decode` and
    `forward_extend`. The latter get what the layer got beyond the named arguments, if anything.
    """

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        """Called by the runner before each pass; prepares what the layers of the pass share.

        `req_to_token_pool` of the batch already holds the slots of the new tokens. A backend may
        override this, or one or both of the two parts that it consists of.
        """
        self.init_forward_metadata_out_graph(forward_batch)
        self.init_forward_metadata_in_graph(forward_batch)

    def init_forward_metadata_out_graph(  # noqa: B027 (a backend may need only the other part)
        self, forward_batch: ForwardBatch, in_capture: bool = False
    ) -> None:
        """The part that reads values back or depends on lengths; runs first."""

    def init_forward_metadata_in_graph(  # noqa: B027 (a backend may need only the other part)
        self, forward_batch: ForwardBatch
    ) -> None:
        """The part that only computes on tensors; runs after the other."""

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
        """Shapes as in `RadixAttention`. Writes k and v to `out_cache_loc` first if
        `save_kv_cache`."""
        mode = forward_batch.forward_mode
        if mode.is_decode():
            run = self.forward_decode
        elif mode.is_mixed():
            run = self.forward_mixed
        else:
            run = self.forward_extend
        return run(q, k, v, layer, forward_batch, save_kv_cache=save_kv_cache, **kwargs)

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
        """One new token per request attends to its whole sequence."""
        raise NotImplementedError(_missing(self, "forward_decode"))

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
        """The new tokens of each request attend to its prefix and, causally, to each other."""
        raise NotImplementedError(_missing(self, "forward_extend"))

    def forward_mixed(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: "RadixAttention",
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Prompts and decoding requests in one pass: an extend pass where some requests have one
        new token. To override where that can be done faster."""
        return self.forward_extend(
            q, k, v, layer, forward_batch, save_kv_cache=save_kv_cache, **kwargs
        )

    def support_triton(self) -> bool:
        """Whether Triton kernels may work on this backend's pool. If not, keys and values are
        stored by plain torch on a CUDA device too."""
        return True

    def forget(self) -> None:  # noqa: B027 (most backends keep nothing)
        """Called when something else than a pass of this backend has written to the pool: what was
        copied from it may have changed."""

    def release(self) -> None:  # noqa: B027 (most backends keep nothing)
        """Called between passes: gives back what is kept from pass to pass only for speed."""


def save_kv(
    layer: "RadixAttention", forward_batch: ForwardBatch, k: torch.Tensor, v: torch.Tensor
) -> None:
    """Writes the new tokens' K and V, shaped as in `RadixAttention`, to their slots."""
    forward_batch.token_to_kv_pool.set_kv_buffer(
        layer,
        forward_batch.out_cache_loc,
        k.view(-1, layer.num_kv_heads, layer.head_dim),
        v.view(-1, layer.num_kv_heads, layer.v_head_dim),
    )


def _missing(backend: AttentionBackend, method: str) -> str:
    return (
        f"the attention backend {type(backend).__qualname__} must define {method}, or forward, "
        "which chooses between decode and extend passes"
    )
