"""Which number type the model computes in, and which one its KV is kept in."""

import torch

from sglang.srt.arg_groups.memory import KV_CACHE_DTYPE_CHOICES
from sglang.srt.arg_groups.model import DTYPE_CHOICES

_DTYPES = {
    "float32": torch.float32,
    "float": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "half": torch.float16,
}
_KV_DTYPES = {
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "fp8_e5m2": torch.float8_e5m2,
    "fp8_e4m3": torch.float8_e4m3fn,
}


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 where the hardware multiplies it natively, else float32."""
    if name == "auto":
        native = device.type != "cpu" or cpu_multiplies_bfloat16()
        return torch.bfloat16 if native else torch.float32
    if name not in _DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPE_CHOICES)}, got {name!r}.")
    return _DTYPES[name]


def resolve_kv_dtype(name: str, compute: torch.dtype) -> torch.dtype:
    """`auto` is what the model computes in."""
    if name == "auto":
        return compute
    if name not in _KV_DTYPES:
        raise ValueError(
            f"kv_cache_dtype must be one of {', '.join(KV_CACHE_DTYPE_CHOICES)}, got {name!r}."
        )
    return _KV_DTYPES[name]


def cpu_multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for it; emulation is far slower than float32."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
