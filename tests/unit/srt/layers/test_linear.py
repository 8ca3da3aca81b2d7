"""The product in blocks is the product."""

import pytest
import torch
import torch.nn.functional as F

from sglang.srt.layers.linear import Linear, MergedLinear, product_in_blocks


@pytest.mark.parametrize("num_tokens", [1, 2, 7, 8, 33, 64])
@pytest.mark.parametrize("num_blocks", [2, 4, 8])
def test_product_in_blocks_equals_the_plain_product(num_tokens: int, num_blocks: int) -> None:
    torch.manual_seed(1)
    weight, x = torch.randn(96, 40), torch.randn(num_tokens, 40)
    blocks = weight.view(num_blocks, -1, 40)
    ours = product_in_blocks(x, blocks)
    assert ours.is_contiguous()
    assert torch.allclose(ours, F.linear(x, weight), atol=1e-5)


@pytest.mark.parametrize("out_features", [1, 7, 12, 64])
@pytest.mark.parametrize("num_tokens", [1, 9, 65])
def test_layer_of_any_size_equals_the_plain_product(out_features: int, num_tokens: int) -> None:
    torch.manual_seed(1)
    layer = Linear(40, out_features, bias=True)
    layer.weight.data.normal_()
    layer.bias.data.normal_()
    layer.finish_loading()
    x = torch.randn(num_tokens, 40)
    assert torch.allclose(layer(x), F.linear(x, layer.weight, layer.bias), atol=1e-5)


def test_shards_of_a_merged_layer_lie_in_order() -> None:
    layer = MergedLinear(3, {"a": 2, "b": 1})
    layer.weight.weight_loader(layer.weight, torch.full((1, 3), 2.0), "b")
    layer.weight.weight_loader(layer.weight, torch.full((2, 3), 1.0), "a")
    assert layer.weight[:, 0].tolist() == [1.0, 1.0, 2.0]


def test_shard_of_another_shape_is_refused() -> None:
    layer = MergedLinear(3, {"a": 2, "b": 1})
    with pytest.raises(ValueError, match=r"\[2, 3\].*\[1, 3\]"):
        layer.weight.weight_loader(layer.weight, torch.ones(1, 3), "a")
