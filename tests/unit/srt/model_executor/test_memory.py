"""How many tokens the KV pool gets."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from sglang.srt.configs.latent_config import LatentConfig
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.configs.rope_config import RopeConfig
from sglang.srt.mem_cache.memory_pool import KVDims
from sglang.srt.model_executor import memory
from sglang.srt.model_executor.memory import MemoryPlan, MemoryWishes, plan_memory, plan_pools

GIB = 1 << 30
CELL = 1 << 14  # bytes per token: 65,536 tokens per GiB
CPU = torch.device("cpu")


def tokens(wishes: MemoryWishes, weight_bytes: int = GIB) -> int:
    return plan_memory(CELL, weight_bytes, CPU, wishes).max_total_num_tokens


@pytest.fixture
def available(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six GiB are left after loading."""
    monkeypatch.setattr(memory, "available_bytes", lambda device: 6 * GIB)


@pytest.mark.usefixtures("available")
class TestPlan:
    def test_cpu_takes_half_of_what_is_left(self) -> None:
        assert tokens(MemoryWishes()) == 3 * GIB // CELL

    def test_fraction_is_of_what_was_free_before_loading(self) -> None:
        assert tokens(MemoryWishes(mem_fraction_static=0.5)) == int(2.5 * GIB) // CELL

    def test_wished_number_of_tokens_is_granted_if_it_fits(self) -> None:
        assert tokens(MemoryWishes(max_total_tokens=5 * GIB // CELL)) == 5 * GIB // CELL
        assert tokens(MemoryWishes(max_total_tokens=9 * GIB // CELL)) == 6 * GIB // CELL

    def test_wished_number_lowers_what_the_fraction_gives(self) -> None:
        assert tokens(MemoryWishes(1, 0.5, 100)) == 100

    def test_pool_is_whole_pages(self) -> None:
        assert tokens(MemoryWishes(page_size=16, max_total_tokens=100)) == 96

    def test_too_little_memory_is_refused_with_the_numbers(self) -> None:
        with pytest.raises(ValueError, match=r"6\.00 GiB.*16384 bytes.*mem_fraction_static"):
            tokens(MemoryWishes(mem_fraction_static=0.1))


def test_cpu_takes_at_most_four_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda device: 600 * GIB)
    assert tokens(MemoryWishes()) == 4 * GIB // CELL


def hybrid_model(windows: tuple[int, ...], latent: LatentConfig | None = None) -> ModelConfig:
    return ModelConfig(
        model_path=Path("model"),
        architectures=("Gemma2ForCausalLM",),
        model_type="gemma2",
        vocab_size=10,
        padded_vocab_size=10,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        rms_norm_eps=1e-6,
        rope=RopeConfig(),
        context_len=8192,
        layer_windows=windows,
        latent=latent,
    )


LAYER = 2 * 4 * 32 * 4  # bytes of a token in one layer, as float32


def pools(config: ModelConfig, **wishes: Any) -> tuple[KVDims, MemoryPlan]:
    wishes = {"longest_pass": 512, "max_total_tokens": 8000, **wishes}
    return plan_pools(config, torch.float32, GIB, CPU, MemoryWishes(**wishes))


@pytest.mark.usefixtures("available")
class TestPools:
    def test_layers_with_a_window_count_by_their_share(self) -> None:
        dims, plan = pools(hybrid_model((1024, -1, 1024, -1)), window_share=0.8)
        assert (dims.window_layers, dims.window_len) == (frozenset((0, 2)), 1024)
        assert plan.cell_bytes == dims.cell_bytes == 2 * LAYER + math.ceil(2 * LAYER * 0.8)
        assert dims.window_tokens(plan.max_total_num_tokens, 16) == 6400

    @pytest.mark.parametrize(
        ("windows", "wishes"),
        [
            ((1024, -1, 1024, -1), {"window_share": None}),  # prefixes are shared
            ((1024,) * 4, {"window_share": 0.8}),  # nothing would be in the first pool
            ((), {"window_share": 0.8}),
            ((1024, -1, 1024, -1), {"window_share": 0.8, "longest_pass": None}),
            ((1024, -1, 1024, -1), {"window_share": 0.1}),  # 800 tokens: less than a window
        ],
    )
    def test_else_all_layers_share_one_pool(
        self, windows: tuple[int, ...], wishes: dict[str, Any]
    ) -> None:
        dims, plan = pools(hybrid_model(windows), **wishes)
        assert not dims.window_layers
        assert plan.cell_bytes == 4 * LAYER

    def test_a_second_pool_that_one_request_could_fill_is_left_out_with_the_numbers(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level("INFO", logger=memory.__name__):
            pools(hybrid_model((1024, -1, 1024, -1)), window_share=0.1)
        assert "would have 800 tokens, and a request may need 2595" in caplog.text

    def test_passes_without_a_limit_are_named_as_the_reason(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level("INFO", logger=memory.__name__):
            pools(hybrid_model((1024, -1, 1024, -1)), window_share=0.8, longest_pass=None)
        assert "with --chunked-prefill-size they get a smaller pool" in caplog.text

    def test_latents_are_one_per_token_and_layer(self) -> None:
        latent = LatentConfig(None, 512, 128, 64, 128)
        dims, _ = pools(hybrid_model((), latent))
        assert dims.cell_bytes == 4 * (512 + 64) * 4


def test_more_tokens_than_the_fraction_allows_are_not_granted(available: None) -> None:
    fitting = int(2.5 * GIB) // CELL
    assert tokens(MemoryWishes(1, 0.5, 2 * fitting)) == fitting
