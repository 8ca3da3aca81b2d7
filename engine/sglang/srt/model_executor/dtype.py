"""Which number type the model computes in."""

import torch

from sglang.srt.arg_groups.model import DTYPE_CHOICES

_DTYPES = {
    "float32": torch.float32,
    "float": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "half": torch.float16,
}


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 where the hardware multiplies it natively, else float32."""
    if name == "auto":
        native = device.type != "cpu" or cpu_multiplies_bfloat16()
        return torch.bfloat16 if native else torch.float32
    if name not in _DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPE_CHOICES)}, got {name!r}.")
    return _DTYPES[name]


def cpu_multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for it; emulation is far slower than float32."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
