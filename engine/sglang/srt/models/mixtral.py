"""Mixtral: Mistral with experts."""

from collections.abc import Iterable

import torch

from sglang.srt.models.llama import LlamaForCausalLM

# The checkpoint's names of an expert's matrices, and ours.
_MATRICES = {".w1.": ".gate_proj.", ".w2.": ".down_proj.", ".w3.": ".up_proj."}


class MixtralForCausalLM(LlamaForCausalLM):
    """The experts come from the configuration."""

    def prepared(
        self, weights: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterable[tuple[str, torch.Tensor]]:
        for name, tensor in super().prepared(weights):
            name = name.replace(".block_sparse_moe.", ".mlp.")
            for theirs, ours in _MATRICES.items():
                name = name.replace(theirs, ours)
            yield name, tensor


EntryClass = MixtralForCausalLM
