"""Attention over fixed blocks is attention, and no bit of it knows how it was asked for."""

from typing import Any

import pytest
import torch

from sglang.srt.core.batch import ForwardBatch, ForwardMode
from sglang.srt.layers.attention.torch_invariant import TorchInvariantAttnBackend
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool

CONTEXT = 300


class Pool:
    """KV by slot, with what the backend asks of a pool."""

    def __init__(self, layer: RadixAttention, num_slots: int) -> None:
        heads = layer.num_kv_heads
        self.keys = torch.randn(num_slots, heads, layer.head_dim)
        self.values = torch.randn(num_slots, heads, layer.v_head_dim)

    def get_kv_buffer(self, layer_id: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.keys, self.values


class Bench:
    """Requests whose KV lies in the pool already, in slots without order."""

    def __init__(self, layer: RadixAttention, lengths: list[int]) -> None:
        torch.manual_seed(0)
        self.layer, self.lengths = layer, lengths
        self.pool = Pool(layer, 1 + sum(lengths))
        self.table = ReqToTokenPool(len(lengths), CONTEXT, "cpu")
        self.table.req_to_token.fill_(0)
        free = torch.randperm(sum(lengths)) + 1
        self.slots: list[torch.Tensor] = []
        for row, length in enumerate(lengths):
            own, free = free[:length], free[length:]
            self.table.req_to_token[row, :length] = own.to(self.table.req_to_token.dtype)
            self.slots.append(own)
        self.queries = [torch.randn(n, layer.num_heads * layer.head_dim) for n in lengths]

    def extend(self, spans: dict[int, tuple[int, int]]) -> list[torch.Tensor]:
        """The attention of queries `first` … `end - 1` of each request."""
        rows = list(spans)
        news = [end - first for first, end in spans.values()]
        batch = self._batch(ForwardMode.EXTEND, rows, [end for _, end in spans.values()])
        batch.extend_prefix_lens = [first for first, _ in spans.values()]
        batch.extend_seq_lens = news
        queries = [self.queries[row][first:end] for row, (first, end) in spans.items()]
        return list(self._run(batch, torch.cat(queries)).split(news))

    def decode(self, places: dict[int, int]) -> torch.Tensor:
        """The attention of one query of each request."""
        batch = self._batch(ForwardMode.DECODE, list(places), [p + 1 for p in places.values()])
        return self._run(batch, torch.stack([self.queries[r][p] for r, p in places.items()]))

    def reference(self, row: int) -> torch.Tensor:
        """Of all queries of a request, in float64 and one by one."""
        layer, slots = self.layer, self.slots[row]
        group = layer.num_heads // layer.num_kv_heads
        keys = self.pool.keys[slots].double().repeat_interleave(group, 1)
        values = self.pool.values[slots].double().repeat_interleave(group, 1)
        outs = []
        for place, query in enumerate(self.queries[row].double()):
            window = layer.sliding_window_size
            first = max(0, place + 1 - window) if window > 0 else 0
            own = query.view(layer.num_heads, 1, -1) * layer.scaling
            scores = (own * keys[first : place + 1].transpose(0, 1)).sum(-1)
            if layer.logit_cap:
                scores = layer.logit_cap * torch.tanh(scores / layer.logit_cap)
            shares = scores.softmax(-1).unsqueeze(-1)
            outs.append((shares * values[first : place + 1].transpose(0, 1)).sum(1).flatten())
        return torch.stack(outs).float()

    def _batch(self, mode: ForwardMode, rows: list[int], ends: list[int]) -> ForwardBatch:
        batch = ForwardBatch(
            mode,
            torch.zeros(1, dtype=torch.int64),
            torch.zeros(1, dtype=torch.int64),
            torch.tensor(rows),
            torch.tensor(ends),
            ends,
            torch.zeros(1, dtype=torch.int64),
        )
        batch.req_to_token_pool, batch.token_to_kv_pool = self.table, self.pool
        return batch

    def _run(self, batch: ForwardBatch, queries: torch.Tensor) -> torch.Tensor:
        backend = TorchInvariantAttnBackend()
        backend.init_forward_metadata(batch)
        nothing = torch.empty(0)
        return backend.forward(queries, nothing, nothing, self.layer, batch, save_kv_cache=False)


SHAPES: dict[str, dict[str, Any]] = {
    "grouped": {"num_heads": 6, "num_kv_heads": 2, "head_dim": 16},
    "one to one": {"num_heads": 3, "num_kv_heads": 3, "head_dim": 8},
    "narrow values": {"num_heads": 4, "num_kv_heads": 1, "head_dim": 24, "v_head_dim": 16},
    "capped": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "logit_cap": 2.0},
    "windowed": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "sliding_window_size": 40},
}


@pytest.fixture(params=SHAPES.values(), ids=SHAPES.keys())
def bench(request: pytest.FixtureRequest) -> Bench:
    options = request.param
    layer = RadixAttention(scaling=options["head_dim"] ** -0.5, layer_id=0, **options)
    return Bench(layer, [260, 3, 128, 129])


def test_it_is_attention(bench: Bench) -> None:
    outs = bench.extend({row: (0, length) for row, length in enumerate(bench.lengths)})
    for row, out in enumerate(outs):
        assert torch.allclose(out, bench.reference(row), atol=1e-5)


@pytest.mark.parametrize("cut", [1, 2, 63, 127, 128, 131, 259])
def test_what_is_cached_does_not_matter(bench: Bench, cut: int) -> None:
    (whole,) = bench.extend({0: (0, 260)})
    (first,), (second,) = bench.extend({0: (0, cut)}), bench.extend({0: (cut, 260)})
    assert torch.equal(torch.cat((first, second)), whole)


def test_neighbours_do_not_matter(bench: Bench) -> None:
    spans = {0: (100, 260), 1: (0, 3), 2: (127, 128), 3: (5, 90)}
    together = bench.extend(spans)
    for row, span in spans.items():
        (alone,) = bench.extend({row: span})
        assert torch.equal(together[row], alone)


def test_decoding_gives_the_bits_of_a_prompt(bench: Bench) -> None:
    prompts = bench.extend({row: (0, length) for row, length in enumerate(bench.lengths)})
    for places in ({0: 259, 1: 2, 2: 127, 3: 128}, {3: 0, 0: 128}, {2: 64}):
        out = bench.decode(places)
        for index, (row, place) in enumerate(places.items()):
            assert torch.equal(out[index], prompts[row][place])


def test_what_it_does_not_know_is_refused() -> None:
    layer = RadixAttention(2, 8, 1.0, 2, 0)
    bench = Bench(layer, [4])
    batch = bench._batch(ForwardMode.DECODE, [0], [4])
    with pytest.raises(ValueError, match="torch_invariant knows no sinks"):
        TorchInvariantAttnBackend().forward(
            torch.empty(1, 16), torch.empty(0), torch.empty(0), layer, batch, False, sinks=1
        )
