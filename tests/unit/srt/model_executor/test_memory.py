"""How many tokens the KV pool gets."""

import pytest
import torch

from sglang.srt.model_executor import memory
from sglang.srt.model_executor.memory import MemoryWishes, plan_memory

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
