"""What the operations launch is code for a GPU, and fits into its memory on chip.

Triton compiles for a device that is not there; only running needs one.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sglang.kernels.decode_attention import decode_attention_triton
from sglang.kernels.dispatch import Kernel
from sglang.kernels.extend_attention import NewTokens, extend_attention_triton
from sglang.kernels.kv_copy import copy_pages_triton
from sglang.kernels.kv_store import store_kv_triton
from sglang.kernels.paged_kv import PagedKV, Scoring
from sglang.kernels.rms_norm import add_rms_norm_triton, rms_norm_triton
from sglang.kernels.rotary import rotate_triton
from sglang.kernels.silu_and_mul import silu_and_mul_triton

COMPUTE_CAPABILITY = 80
SHARED_BYTES = 99 * 1024  # the least of the devices from there on
TYPES = {
    torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16",
    torch.int32: "*i32", torch.int64: "*i64",
}  # fmt: skip
DTYPES = [torch.float32, torch.bfloat16]


def compiled(function: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants = {name: options.pop(name) for name in function.arg_names if name in options}
    types = [
        TYPES[arg.dtype] if isinstance(arg, torch.Tensor) else "i32" if type(arg) is int else "fp32"
        for arg in args
    ] + ["constexpr"] * len(constants)
    source = ASTSource(function, dict(zip(function.arg_names, types, strict=True)), constants)
    return triton.compile(source, GPUTarget("cuda", COMPUTE_CAPABILITY, 32), options)


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Launches compile instead; the results by the kernels' names."""
    results: dict[str, Any] = {}
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))

    def compile_instead(kernel: Kernel, grid: tuple[int, ...]) -> Any:
        def launch(*args: Any, **options: Any) -> None:
            function = kernel._compile()
            results[function.__name__] = compiled(function, args, options)

        return launch

    monkeypatch.setattr(Kernel, "__getitem__", compile_instead)
    yield results
    assert results
    for result in results.values():
        assert result.asm["cubin"]
        assert result.metadata.shared <= SHARED_BYTES


@pytest.mark.parametrize("dtype", DTYPES)
def test_elementwise_kernels_compile(built: dict[str, Any], dtype: torch.dtype) -> None:
    x, weight = torch.zeros(2, 4096, dtype=dtype), torch.zeros(4096, dtype=dtype)
    rms_norm_triton(x, weight, 1e-5)
    add_rms_norm_triton(x, x, weight, 1e-5)
    silu_and_mul_triton(x)
    angles = torch.zeros(2, 1, 128, dtype=dtype)
    rotate_triton(x.view(2, 32, 128), angles, angles)
    assert set(built) == {"_rms_norm_kernel", "_silu_and_mul_kernel", "_rotate_kernel"}


@pytest.mark.parametrize(
    ("head_dim", "v_head_dim", "dtype"),
    [
        (128, 128, torch.float32), (128, 128, torch.bfloat16), (256, 256, torch.bfloat16),
        (192, 128, torch.bfloat16), (576, 512, torch.bfloat16), (576, 512, torch.float32),
    ],
)  # fmt: skip
@pytest.mark.parametrize("scoring", [Scoring(0.1), Scoring(0.1, 64, 30.0)])
def test_attention_kernels_compile(
    built: dict[str, Any], head_dim: int, v_head_dim: int, dtype: torch.dtype, scoring: Scoring
) -> None:
    buffer = torch.zeros(8, 2, head_dim, dtype=dtype)
    one = torch.tensor([1])
    kv = PagedKV(buffer, buffer[..., :v_head_dim], torch.zeros(2, 8, dtype=torch.int32), one, one)
    q = torch.zeros(1, 64, head_dim, dtype=dtype)
    decode_attention_triton(q, kv, scoring)
    extend_attention_triton(q, kv, NewTokens(torch.tensor([0, 1]), 1), scoring)
    assert set(built) == {"_split_kernel", "_merge_kernel", "_extend_kernel"}


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
def test_kernels_of_the_pool_compile(built: dict[str, Any], dtype: torch.dtype) -> None:
    buffers = (torch.zeros(64, 8, 128, dtype=dtype), torch.zeros(64, 8, 128, dtype=dtype))
    one = torch.tensor([1])
    store_kv_triton(buffers, one, tuple(buffer[:1].float() for buffer in buffers))
    copy_pages_triton(buffers[0], one, one, 16)
    assert set(built) == {"_store_kernel", "_copy_kernel"}
