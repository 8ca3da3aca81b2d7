"""A model gives the same greedy tokens with the kernels as without."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from sglang.kernels import dispatch
from sglang.srt.layers.attention.torch_native import TorchNativeAttnBackend
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
from tests.unit.srt.models.driver import Driver, make_req
from tests.unit.srt.models.test_llama_exact import save_reference

NUM_TOKENS = 4
LENGTHS = (1, 17, 70)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_reference(folder, num_key_value_heads=2, tie_word_embeddings=True)
    return folder


def prompts() -> list[list[int]]:
    generator = random.Random(3)
    return [[generator.randrange(301) for _ in range(length)] for length in LENGTHS]


def driver(folder: Path, attention_backend: str) -> Driver:
    return Driver(folder, attention_backend=attention_backend)


def tokens(running: Driver, chunk: int | None) -> list[list[int]]:
    running.clear()
    reqs = [running.admit(make_req(prompt)) for prompt in prompts()]
    return [ids[:NUM_TOKENS] for ids in running.generate(reqs, NUM_TOKENS, chunk)]


def test_attention_kernels_give_the_same_tokens(folder: Path) -> None:
    plain, fast = driver(folder, "torch_native"), driver(folder, "triton")
    assert isinstance(plain.runner.attn_backend, TorchNativeAttnBackend)
    assert isinstance(fast.runner.attn_backend, TritonAttnBackend)
    assert tokens(fast, 32) == tokens(plain, 32)


def test_all_kernels_together_give_the_same_tokens(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = tokens(driver(folder, "torch_native"), None)
    launched = count_launches(monkeypatch)
    as_on_cuda(monkeypatch)
    assert tokens(driver(folder, "triton"), None) == expected
    assert launched == {
        "_rms_norm_kernel", "_silu_and_mul_kernel", "_rotate_kernel",
        "_split_kernel", "_merge_kernel", "_extend_kernel", "_store_kernel",
    }  # fmt: skip


def test_cached_prefix_is_attended_to(folder: Path) -> None:
    answers = []
    for name in ("torch_native", "triton"):
        running = driver(folder, name)
        first, second = (make_req(prompts()[2]) for _ in range(2))
        running.generate([running.admit(first)], 1)
        answers += running.generate([running.admit(second, first, 60)], NUM_TOKENS)
    assert answers[0] == answers[1]


def as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers that are built from now on take the kernels."""

    def kernel(device: torch.device, twin: Any, kernel: Any) -> Any:
        return kernel

    for module in ("rms_norm", "silu_and_mul", "rotary", "kv_store"):
        monkeypatch.setattr(f"sglang.kernels.{module}.choose", kernel)


def count_launches(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of the kernels that are launched from now on."""
    names: set[str] = set()
    launch = dispatch.Kernel.__getitem__

    def counting(kernel: Any, grid: tuple[int, ...]) -> Any:
        names.add(kernel._function.__name__)
        return launch(kernel, grid)

    monkeypatch.setattr(dispatch.Kernel, "__getitem__", counting)
    return names
