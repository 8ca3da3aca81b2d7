"""Every backend equals the kernels' twin in every kind of pass, whatever the layer asks for."""

from typing import Any

import pytest
import torch

from sglang.srt.core.batch import ForwardMode
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend, save_kv
from sglang.srt.layers.attention.hybrid_backend import HybridAttnBackend
from sglang.srt.layers.attention.torch_native import TorchNativeAttnBackend
from sglang.srt.layers.radix_attention import RadixAttention
from tests.unit.srt.layers.attention_batches import World

DECODE, EXTEND, MIXED = ForwardMode.DECODE, ForwardMode.EXTEND, ForwardMode.MIXED
LAYERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"sliding_window_size": 7},
    "own token": {"sliding_window_size": 1},
    "wide window": {"sliding_window_size": 90},
    "cap": {"logit_cap": 2.0},
    "window and cap": {"sliding_window_size": 20, "logit_cap": 1.5},
}


def layer_of(num_heads: int = 4, kv_heads: int = 2, head_dim: int = 16, **options: Any) -> Any:
    return RadixAttention(num_heads, head_dim, 0.5, kv_heads, 0, **options)


def torch_native(world: World) -> TorchNativeAttnBackend:
    return TorchNativeAttnBackend(world.cell_bytes)


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("options", LAYERS.values(), ids=LAYERS)
def test_torch_native(options: dict[str, Any], page_size: int) -> None:
    world = World(layer_of(**options), page_size)
    backend = torch_native(world)
    world.admit([0, 0, 0])
    world.check(backend, [3, 50, 1], EXTEND)
    world.check(backend, [30, 4, 1], EXTEND)
    for _ in range(3):
        world.check(backend, [1, 1, 1], DECODE)
    world.admit([0])
    world.check(backend, [1, 1, 1, 25], MIXED)
    for _ in range(3):
        world.check(backend, [1, 1, 1, 1], DECODE)


@pytest.mark.parametrize("options", LAYERS.values(), ids=LAYERS)
def test_torch_native_of_requests_that_decode_in_groups(options: dict[str, Any]) -> None:
    world = World(layer_of(**options))
    world.admit([195, 4, 190, 5, 3])
    backend = torch_native(world)
    for _ in range(3):
        world.check(backend, [1] * 5, DECODE)


@pytest.mark.parametrize("options", LAYERS.values(), ids=LAYERS)
def test_torch_native_up_to_the_end_of_the_table(options: dict[str, Any]) -> None:
    world = World(layer_of(**options))
    world.admit([202, 10])
    world.check(torch_native(world), [1, 1], DECODE)


@pytest.mark.parametrize("options", [{}, {"sliding_window_size": 7}, {"logit_cap": 2.0}])
def test_torch_native_of_latents(options: dict[str, Any]) -> None:
    world = World(layer_of(5, 1, 24, v_head_dim=16, **options), 4, latent_rank=16)
    backend = torch_native(world)
    world.admit([0, 0])
    world.check(backend, [20, 3], EXTEND)
    world.check(backend, [2, 40], EXTEND)
    for _ in range(4):
        world.check(backend, [1, 1], DECODE)
    world.check(backend, [1, 6], MIXED)
    world.check(backend, [1, 1], DECODE)


class Counting(TorchNativeAttnBackend):
    """Remembers the kinds of its passes."""

    def __init__(self, world: World) -> None:
        super().__init__(world.cell_bytes)
        self.passes: list[ForwardMode] = []
        self.forgotten = 0

    def init_forward_metadata(self, forward_batch: Any) -> None:
        self.passes.append(forward_batch.forward_mode)
        super().init_forward_metadata(forward_batch)

    def forget(self) -> None:
        self.forgotten += 1
        super().forget()


def test_a_hybrid_backend_sends_each_pass_to_its_phase() -> None:
    world = World(layer_of())
    prefill, decode = Counting(world), Counting(world)
    backend = HybridAttnBackend(prefill, decode)
    world.admit([0, 0])
    world.check(backend, [5, 9], EXTEND)
    world.check(backend, [1, 1], DECODE)
    world.check(backend, [1, 1], DECODE)
    # What the decode backend has gathered is no longer all there is.
    world.check(backend, [1, 7], MIXED)
    world.check(backend, [1, 1], DECODE)
    assert prefill.passes == [EXTEND, MIXED]
    assert decode.passes == [DECODE] * 3
    assert decode.forgotten == 2
    assert backend.support_triton()


class Minimal(AttentionBackend):
    """What the guide asks of a new backend: two methods."""

    def __init__(self, world: World) -> None:
        self.inner = torch_native(world)
        self.seen: list[dict[str, Any]] = []

    def init_forward_metadata(self, forward_batch: Any) -> None:
        self.inner.init_forward_metadata(forward_batch)

    def forward(self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any,
                save_kv_cache: bool = True, **kwargs: Any) -> torch.Tensor:  # fmt: skip
        self.seen.append(kwargs)
        return self.inner.forward(q, k, v, layer, forward_batch, save_kv_cache)


def test_a_backend_of_two_methods_works() -> None:
    world = World(layer_of())
    world.admit([0])
    world.check(Minimal(world), [5], EXTEND)
    world.check(Minimal(world), [1], DECODE)


class InParts(AttentionBackend):
    """Makes its metadata in the two parts, and defines phases alone."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        self.calls.append(f"out {in_capture}")

    def init_forward_metadata_in_graph(self, forward_batch: Any) -> None:
        self.calls.append("in")

    def forward_extend(self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any,
                       save_kv_cache: bool = True, **kwargs: Any) -> torch.Tensor:  # fmt: skip
        save_kv(layer, forward_batch, k, v)
        self.calls.append("extend")
        return q


def test_parts_come_in_order_and_a_mixed_pass_is_an_extend_pass() -> None:
    world = World(layer_of())
    world.admit([0, 3])
    backend = InParts()
    world.run(backend, [4, 1], MIXED)
    assert backend.calls == ["out False", "in", "extend"]
    with pytest.raises(NotImplementedError, match="InParts must define forward_decode"):
        world.run(backend, [1, 1], DECODE)


def test_what_a_layer_gets_beyond_the_named_arguments_reaches_the_backend() -> None:
    world = World(layer_of())
    backend = Minimal(world)
    layer, batch = world.layer, type("Batch", (), {"attn_backend": backend})()
    backend.inner.forward = lambda q, *rest: q  # type: ignore[method-assign]
    assert layer(1, 2, 3, batch, q_rope=7) == 1
    assert backend.seen == [{"q_rope": 7}]


def test_a_window_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="sliding_window_size must be -1"):
        layer_of(sliding_window_size=0)
