"""Which attention backends can be named, and which one suits which device."""

import importlib.util
from collections.abc import Iterable
from typing import TYPE_CHECKING

from sglang.srt.arg_groups.name_list import NameList
from sglang.srt.environ import read_variable
from sglang.srt.extension_points import ATTENTION_BACKENDS

if TYPE_CHECKING:
    from sglang.srt.arg_groups.kernels import KernelArgs

_TRITON_TRUE = ("1", "true", "yes", "on", "y")

# What the three flags of attention backends take.
ATTENTION_BACKEND_CHOICES = NameList(ATTENTION_BACKENDS)


def add_attention_backend_choices(choices: Iterable[str]) -> None:
    """Lets options name backends that are registered later, by the process that computes."""
    ATTENTION_BACKEND_CHOICES.extend(choices)


def default_attention_backend(device: str) -> str:
    return "triton" if device == "cuda" else "torch_native"


def check_attention(args: "KernelArgs", device: str) -> None:
    """ValueError where a chosen backend cannot run on the device."""
    check_attention_backend(args.attention_backend or "", device)
    for phase, name in (
        ("--prefill-attention-backend", args.prefill_attention_backend),
        ("--decode-attention-backend", args.decode_attention_backend),
    ):
        if name is not None:
            check_attention_backend(name, device, phase)


def check_attention_backend(name: str, device: str, flag: str = "--attention-backend") -> None:
    """ValueError if the backend cannot run on the device."""
    if name == "triton" and device == "cpu" and not triton_is_interpreted():
        raise ValueError(
            f"{flag} triton needs a CUDA device; on a CPU use torch_native, or set "
            "TRITON_INTERPRET=1 to try the kernels slowly in Triton's interpreter"
        )
    if name == "flashinfer" and device != "cuda":
        raise ValueError(
            f"{flag} flashinfer needs a CUDA device, got {device}; on a CPU use torch_native"
        )
    if name == "flashinfer" and importlib.util.find_spec("flashinfer") is None:
        raise ValueError(
            f"{flag} flashinfer needs the package flashinfer-python, which is not installed; "
            "install it with pip install 'sglang[cuda]', or use triton"
        )


def triton_is_interpreted() -> bool:
    """Whether Triton runs its kernels on the CPU, step by step in Python."""
    return (read_variable("TRITON_INTERPRET") or "").lower() in _TRITON_TRUE
