"""What computes."""

from dataclasses import dataclass
from typing import Annotated as A

from sglang.srt.arg_groups.declaration import Choices, Group
from sglang.srt.extension_points import ATTENTION_BACKENDS

GROUP = Group("kernels")


@dataclass
class KernelArgs:
    """Implementations of attention and their parameters."""

    attention_backend: A[
        str | None,
        GROUP,
        Choices(lambda: ATTENTION_BACKENDS),
        "Implementation of attention; default: triton on CUDA, else torch_native.",
    ] = None
