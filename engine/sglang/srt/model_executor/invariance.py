"""Makes a loaded model compute each row with the same bits, whatever else is in the batch."""

from functools import partial

from torch import nn

from sglang.srt.layers.activation import GeluTanhAndMul, SiluAndMul
from sglang.srt.layers.latent_projection import LatentProjection
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import Linear
from sglang.srt.layers.moe import ExpertRouter
from sglang.srt.layers.vocab_embedding import LMHead, VocabEmbedding
from sglang.srt.model_executor.row_pieces import in_one_thread, in_tiles, one_by_one

# They look numbers up, or reduce whole rows one by one: torch does the same to a row in any batch.
_INVARIANT = (VocabEmbedding, RMSNorm)


def compute_invariantly(model: nn.Module) -> None:
    """Called once, after loading. ValueError where a part of the model has no such form."""
    for module in model.modules():
        _adapt(module)


def _adapt(module: nn.Module) -> None:
    if isinstance(module, LMHead) and module.logit_cap > 0:
        module.forward = partial(one_by_one, module.forward)
    elif isinstance(module, Linear | ExpertRouter):
        module.forward = partial(in_tiles, module.forward)
    elif isinstance(module, SiluAndMul | GeluTanhAndMul):
        module.forward = partial(in_one_thread, module.forward)
    elif isinstance(module, LatentProjection):
        module.absorb = partial(in_tiles, module.absorb)
        module.values = partial(in_tiles, module.values)
    elif not isinstance(module, _INVARIANT) and any(module.parameters(recurse=False)):
        raise ValueError(
            f"--enable-deterministic-inference: {type(module).__name__}, a part of this model, has "
            "no form whose bits do not depend on the batch; leave the option out"
        )
