"""FlashInfer gets the pool's rows as its pages, and plans once per pass and shape of layers."""

import importlib.util
import inspect
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang.srt.core.batch import ForwardMode
from sglang.srt.layers.attention.attention_registry import create_attention_backend
from sglang.srt.layers.attention.flashinfer_backend import (
    FlashInferAttnBackend,
    pages_of,
    starts_of,
)
from sglang.srt.layers.radix_attention import RadixAttention
from tests.unit.srt.layers import flashinfer_double
from tests.unit.srt.layers.attention_batches import World
from tests.unit.srt.layers.test_attention_backends import LAYERS, layer_of

DECODE, EXTEND, MIXED = ForwardMode.DECODE, ForwardMode.EXTEND, ForwardMode.MIXED
INSTALLED = importlib.util.find_spec("flashinfer") is not None


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_pages_hold_exactly_the_slots_of_each_request(page_size: int) -> None:
    world = World(layer_of(), page_size)
    world.admit([1, 15, 16, 17, 33, 64])
    table = world.memory.req_to_token_pool.req_to_token
    rows = torch.tensor([4, 1, 6, 2, 3, 5])
    lens = [world.lens[row - 1] for row in rows.tolist()]
    pages = pages_of(table, rows, lens, page_size)
    assert all(tensor.dtype == torch.int32 for tensor in pages)
    for request, (row, length) in enumerate(zip(rows.tolist(), lens, strict=True)):
        own = pages.indices[pages.indptr[request] : pages.indptr[request + 1]]
        slots = (own[:, None] * page_size + torch.arange(page_size)).flatten()
        full = (len(own) - 1) * page_size
        assert full + pages.last_page_len[request] == length
        assert slots[:length].tolist() == table[row, :length].tolist()


def test_starts() -> None:
    assert starts_of([3, 1, 7]).tolist() == [0, 3, 4, 11]


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> FlashInferAttnBackend:
    monkeypatch.setitem(sys.modules, "flashinfer", flashinfer_double)
    flashinfer_double.CALLS.clear()
    return FlashInferAttnBackend(torch.device("cpu"))


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("options", LAYERS.values(), ids=LAYERS)
def test_passes(options: dict[str, Any], page_size: int, backend: FlashInferAttnBackend) -> None:
    world = World(layer_of(**options), page_size)
    world.admit([0, 0, 0])
    world.check(backend, [3, 50, 1], EXTEND)
    world.check(backend, [30, 4, 1], EXTEND)
    world.check(backend, [1, 1, 1], DECODE)
    world.check(backend, [1, 9, 1], MIXED)
    world.check(backend, [1, 1, 1], DECODE)
    assert flashinfer_double.CALLS == [
        "plan prefill", "plan prefill", "plan decode", "plan prefill", "plan decode",
    ]  # fmt: skip


@pytest.mark.parametrize("group", [1, 3, 4, 7])
def test_groups_of_any_size_decode(group: int, backend: FlashInferAttnBackend) -> None:
    world = World(layer_of(2 * group, 2))
    world.admit([9])
    world.check(backend, [1], DECODE)


def test_layers_of_one_shape_share_a_plan(backend: FlashInferAttnBackend) -> None:
    world = World(layer_of())
    world.admit([5])
    world.run(backend, [1], DECODE)
    assert backend._planned_wrapper(*shape_of(world)) is backend._planned_wrapper(*shape_of(world))
    windowed = World(layer_of(sliding_window_size=3))
    assert backend._planned_wrapper(*shape_of(windowed)) is not backend._planned_wrapper(
        *shape_of(world)
    )
    assert flashinfer_double.CALLS == ["plan decode"] * 2


def shape_of(world: World) -> tuple[Any, int]:
    from sglang.srt.layers.attention.flashinfer_backend import _Shape

    layer: RadixAttention = world.layer
    heads = (layer.num_heads, layer.num_kv_heads, layer.head_dim)
    return _Shape(*heads, layer.scoring, torch.float32, torch.float32), world.page_size


def runner(device: str = "cuda", dtype: torch.dtype = torch.bfloat16, latent_rank: int = 0) -> Any:
    kv_dims = SimpleNamespace(latent_rank=latent_rank)
    return SimpleNamespace(device=torch.device(device), dtype=dtype, kv_dims=kv_dims)


def test_what_cannot_be_computed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="--attention-backend flashinfer needs a CUDA device"):
        create_attention_backend("flashinfer", runner("cpu"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"flashinfer-python.*pip install 'sglang\[cuda\]'"):
        create_attention_backend("flashinfer", runner())
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    with pytest.raises(ValueError, match="float16 or bfloat16, got float32.*--dtype"):
        create_attention_backend("flashinfer", runner(dtype=torch.float32))
    with pytest.raises(ValueError, match="does not attend to latents.*triton"):
        create_attention_backend("flashinfer", runner(latent_rank=512))


@pytest.mark.skipif(not INSTALLED, reason="the package flashinfer-python is not installed")
@pytest.mark.parametrize(
    "name", ["BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper"]
)
def test_the_double_takes_what_the_package_takes(name: str) -> None:
    import flashinfer

    for method in ("__init__", "plan", "run"):
        ours, real = (
            inspect.signature(getattr(getattr(module, name), method)).parameters
            for module in (flashinfer_double, flashinfer)
        )
        takes_any = any(p.kind is p.VAR_KEYWORD for p in real.values())
        assert takes_any or set(ours) <= set(real)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
@pytest.mark.skipif(not INSTALLED, reason="the package flashinfer-python is not installed")
@pytest.mark.parametrize("options", LAYERS.values(), ids=LAYERS)
def test_on_a_gpu(options: dict[str, Any]) -> None:
    layer = layer_of(8, 2, 128, **options)
    world = World(layer, 16, device="cuda", dtype=torch.bfloat16)
    backend = FlashInferAttnBackend(torch.device("cuda"))
    world.admit([0, 0])
    for news, mode in (([3, 50], EXTEND), ([30, 4], EXTEND), ([1, 1], DECODE), ([1, 9], MIXED)):
        ours, expected = world.run(backend, news, mode)
        torch.testing.assert_close(ours, expected, rtol=2e-2, atol=2e-2)
