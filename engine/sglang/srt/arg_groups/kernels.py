"""What computes."""

from dataclasses import dataclass
from typing import Annotated as A

from sglang.srt.arg_groups.attention import ATTENTION_BACKEND_CHOICES
from sglang.srt.arg_groups.declaration import Bound, Choices, Group

GROUP = Group("kernels")
ATTENTION = Choices(lambda: ATTENTION_BACKEND_CHOICES)


@dataclass
class KernelArgs:
    """Implementations of attention and their parameters."""

    attention_backend: A[
        str | None,
        GROUP,
        ATTENTION,
        "Implementation of attention; default: triton on CUDA, else torch_native.",
    ] = None
    prefill_attention_backend: A[
        str | None,
        GROUP,
        ATTENTION,
        "Attention of prompts, where it is to be another than --attention-backend.",
    ] = None
    decode_attention_backend: A[
        str | None,
        GROUP,
        ATTENTION,
        "Attention of decode steps, where it is to be another than --attention-backend.",
    ] = None
    triton_attention_num_kv_splits: A[
        int,
        GROUP,
        Bound(ge=1),
        "Parts of a sequence that triton's decode attention computes side by side.",
    ] = 8
