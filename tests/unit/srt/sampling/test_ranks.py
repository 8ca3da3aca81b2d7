"""Equal numbers are ranked by their index, however many are asked for."""

import torch

from sglang.srt.sampling.ranks import stable_topk


def test_ranks_are_those_of_a_stable_sort() -> None:
    torch.manual_seed(0)
    values = torch.randn(4, 3000).round(decimals=1)  # many ties, negative ones too
    values[0, :5] = torch.tensor([-torch.inf, torch.inf, 0.0, torch.inf, -torch.inf])
    wanted = values.sort(dim=-1, descending=True, stable=True)
    for count in (1, 2, 17, 500, 3000):
        ranked, indices = stable_topk(values, count)
        assert torch.equal(ranked, wanted.values[:, :count])
        assert torch.equal(indices, wanted.indices[:, :count])
