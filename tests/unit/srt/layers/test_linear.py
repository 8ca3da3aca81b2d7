"""The product of blocked weights is the product, and a row's result is its own."""

import pytest
import torch
import torch.nn.functional as F

from sglang.srt.layers.blocked_weight import BlockedWeight, rows_computed
from sglang.srt.layers.linear import Linear, MergedLinear
from sglang.srt.layers.vocab_embedding import LMHead, VocabEmbedding

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 5e-2}
TYPES = [
    dtype for dtype in TOLERANCE if BlockedWeight.is_worth(torch.empty(1, dtype=dtype))
]  # what this CPU has


def test_float32_is_blocked_on_every_x86_cpu() -> None:
    assert torch.float32 in TYPES or not torch.backends.mkldnn.is_available()


def filled(layer: Linear) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Random weights; copies, since the layer drops its own."""
    layer.weight.data.normal_()
    if layer.bias is not None:
        layer.bias.data.normal_()
    weight = layer.weight.data.clone()
    layer.finish_loading()
    return weight, layer.bias


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("out_features", [1, 7, 12, 64])
@pytest.mark.parametrize("num_tokens", [0, 1, 2, 9, 65])
def test_layer_of_any_size_equals_the_plain_product(
    out_features: int, num_tokens: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(1)
    layer = Linear(40, out_features, bias=True).to(dtype)
    weight, bias = filled(layer)
    x = torch.randn(num_tokens, 40, dtype=dtype)
    assert torch.allclose(layer(x), F.linear(x, weight, bias), atol=TOLERANCE[dtype], rtol=1e-2)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("out_features", "in_features"), [(960, 576), (576, 576), (576, 1536)])
def test_a_row_s_result_does_not_depend_on_its_neighbours(
    out_features: int, in_features: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(1)
    layer = Linear(in_features, out_features).to(dtype)
    filled(layer)
    x = torch.randn(600, in_features, dtype=dtype)
    together = layer(x)
    for num_tokens in (1, 2, 3, 8, 33, 64, 100, 511):
        assert torch.equal(layer(x[:num_tokens]), together[:num_tokens])


def test_products_are_compiled_for_few_numbers_of_rows() -> None:
    sizes = [rows_computed(num_tokens) for num_tokens in range(1, 4097)]
    assert all(size >= num_tokens for num_tokens, size in enumerate(sizes, start=1))
    assert all(size <= 1.5 * num_tokens + 7 for num_tokens, size in enumerate(sizes, start=1))
    assert len(set(sizes[:512])) == 24
    assert len(set(sizes)) == 24 + 28
    assert min(sizes) == 2


def test_columns_of_a_wider_tensor_are_taken_as_they_are() -> None:
    layer = Linear(8, 4)
    weight, _ = filled(layer)
    wide = torch.randn(3, 16)
    assert torch.allclose(layer(wide[:, 4:12]), F.linear(wide[:, 4:12], weight), atol=1e-5)


def test_a_blocked_weight_is_held_once_and_a_shared_table_stays() -> None:
    layer = Linear(8, 4)
    filled(layer)
    assert layer.weight.nbytes + layer.blocked_bytes == 8 * 4 * 4
    table = VocabEmbedding(10, 8)
    table.weight.data.normal_()
    head = LMHead(8, 10, vocab_size=9)
    head.tie(table)
    head.finish_loading()
    x = torch.randn(3, 8)
    assert torch.allclose(head(x), F.linear(x, table.weight[:9]), atol=1e-5)
    assert torch.equal(table(torch.tensor([9])), table.weight[9:])


def test_shards_of_a_merged_layer_lie_in_order() -> None:
    layer = MergedLinear(3, {"a": 2, "b": 1})
    layer.weight.weight_loader(layer.weight, torch.full((1, 3), 2.0), "b")
    layer.weight.weight_loader(layer.weight, torch.full((2, 3), 1.0), "a")
    assert layer.weight[:, 0].tolist() == [1.0, 1.0, 2.0]


def test_shard_of_another_shape_is_refused() -> None:
    layer = MergedLinear(3, {"a": 2, "b": 1})
    with pytest.raises(ValueError, match=r"\[2, 3\].*\[1, 3\]"):
        layer.weight.weight_loader(layer.weight, torch.ones(1, 3), "a")
