"""Attention backends are found by name, and a plugin's registration wins."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang.srt.layers.attention.attention_registry import (
    ATTENTION_BACKENDS,
    create_attention_backend,
    register_attention_backend,
)
from sglang.srt.layers.attention.torch_native import TorchNativeAttnBackend
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend


@pytest.fixture
def new_name() -> Any:
    yield "of_a_test"
    ATTENTION_BACKENDS.pop("of_a_test", None)


def test_built_in_backend_is_created_for_the_runner() -> None:
    runner = SimpleNamespace(kv_dims=SimpleNamespace(cell_bytes=64))
    backend = create_attention_backend("torch_native", runner)
    assert isinstance(backend, TorchNativeAttnBackend)


def test_factory_gets_the_runner_and_is_returned_unchanged(new_name: str) -> None:
    def factory(runner: Any) -> Any:
        return ("made for", runner)

    assert register_attention_backend(new_name)(factory) is factory
    assert create_attention_backend(new_name, "runner") == ("made for", "runner")


def test_second_registration_wins_with_a_warning_that_names_both(
    new_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    def first(runner: Any) -> Any:
        return 1

    def second(runner: Any) -> Any:
        return 2

    register_attention_backend(new_name)(first)
    with caplog.at_level(logging.WARNING):
        register_attention_backend(new_name)(second)
    assert create_attention_backend(new_name, None) == 2
    assert "first" in caplog.text
    assert "second" in caplog.text


def test_unknown_name_is_refused_with_the_known() -> None:
    with pytest.raises(ValueError, match="Invalid attention backend: fast.*torch_native"):
        create_attention_backend("fast", None)


def test_triton_is_made_for_cuda_and_refused_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    config = SimpleNamespace(triton_attention_num_kv_splits=3)
    on_cuda = SimpleNamespace(device=torch.device("cuda"), config=config)
    backend = create_attention_backend("triton", on_cuda)
    assert isinstance(backend, TritonAttnBackend) and backend.num_kv_splits == 3
    with pytest.raises(ValueError, match="needs a CUDA device"):
        create_attention_backend("triton", SimpleNamespace(device=torch.device("cpu")))
