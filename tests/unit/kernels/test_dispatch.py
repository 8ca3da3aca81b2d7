"""The device that a layer is built on decides between a kernel and its twin."""

import pytest
import torch

from sglang.kernels.dispatch import choose, power_of_two
from sglang.kernels.kv_copy import copy_pages_for, copy_pages_torch, copy_pages_triton
from sglang.kernels.kv_store import store_kv_for, store_kv_torch, store_kv_triton
from sglang.kernels.rms_norm import rms_norm_for, rms_norm_torch, rms_norm_triton
from sglang.kernels.rotary import rotate_for, rotate_torch, rotate_triton
from sglang.kernels.silu_and_mul import (
    silu_and_mul_for,
    silu_and_mul_torch,
    silu_and_mul_triton,
)

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 1)


def test_cpu_takes_the_twin_and_cuda_the_kernel() -> None:
    assert choose(CPU, "twin", "kernel") == "twin"
    assert choose(CUDA, "twin", "kernel") == "kernel"


def test_layers_find_their_operations() -> None:
    assert (rms_norm_for(CPU).norm, rms_norm_for(CUDA).norm) == (rms_norm_torch, rms_norm_triton)
    assert (rotate_for(CPU), rotate_for(CUDA)) == (rotate_torch, rotate_triton)
    assert silu_and_mul_for(CPU) is silu_and_mul_torch
    assert silu_and_mul_for(CUDA) is silu_and_mul_triton
    assert (store_kv_for(CPU), store_kv_for(CUDA)) == (store_kv_torch, store_kv_triton)
    assert (copy_pages_for(CPU), copy_pages_for(CUDA)) == (copy_pages_torch, copy_pages_triton)


@pytest.mark.parametrize(("size", "block"), [(1, 1), (2, 2), (3, 4), (64, 64), (65, 128)])
def test_blocks_are_powers_of_two(size: int, block: int) -> None:
    assert power_of_two(size) == block
    assert power_of_two(size, 16) == max(block, 16)
