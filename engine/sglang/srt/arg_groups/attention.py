"""Which attention backend suits which device."""

from sglang.srt.environ import read_variable

_TRITON_TRUE = ("1", "true", "yes", "on", "y")


def default_attention_backend(device: str) -> str:
    return "triton" if device == "cuda" else "torch_native"


def check_attention_backend(name: str, device: str) -> None:
    """Raises ValueError if the backend cannot run on the device."""
    if name == "triton" and device == "cpu" and not triton_is_interpreted():
        raise ValueError(
            "--attention-backend triton needs a CUDA device; on a CPU use torch_native, or set "
            "TRITON_INTERPRET=1 to try the kernels slowly in Triton's interpreter"
        )


def triton_is_interpreted() -> bool:
    """Whether Triton runs its kernels on the CPU, step by step in Python."""
    return (read_variable("TRITON_INTERPRET") or "").lower() in _TRITON_TRUE
