"""Keys and values are kept in the type that was asked for, and read in the model's own."""

from pathlib import Path

import pytest
import torch

from sglang.srt.model_executor.dtype import resolve_kv_dtype
from tests.unit.srt.models.driver import Driver, make_req
from tests.unit.srt.models.reference import NUM_TOKENS, prompts
from tests.unit.srt.models.test_llama_exact import save_reference

# Largest difference of a logit from that of a pool in float32; the logits' own spread is about 3.
TOLERANCE = {"bfloat16": 0.05, "fp8_e4m3": 0.8, "fp8_e5m2": 1.6}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_reference(folder, num_key_value_heads=2)
    return folder


@pytest.fixture(scope="module")
def wide(folder: Path) -> Driver:
    return Driver(folder)


def test_auto_is_what_the_model_computes_in() -> None:
    assert resolve_kv_dtype("auto", torch.float32) is torch.float32
    assert resolve_kv_dtype("bf16", torch.float32) is torch.bfloat16


def test_types_that_need_scales_are_refused() -> None:
    with pytest.raises(ValueError, match=r"kv_cache_dtype must be one of auto.*'mxfp8'"):
        resolve_kv_dtype("mxfp8", torch.float32)


@pytest.mark.parametrize("name", TOLERANCE)
def test_cached_prefix_is_read_back_nearly_as_it_was_written(
    name: str, folder: Path, wide: Driver
) -> None:
    prompt = prompts()[4]
    narrow = Driver(folder, kv_cache_dtype=name)
    pool = narrow.memory.token_to_kv_pool
    assert pool.get_key_buffer(0).dtype is pool.dtype is resolve_kv_dtype(name, torch.float32)
    found = []
    for driver in (wide, narrow):
        first = driver.admit(make_req(prompt))
        driver.logits(first)
        found.append(driver.logits(driver.admit(make_req(prompt), first, len(prompt) - 1)))
        driver.clear()
    difference = (found[0] - found[1]).abs().max()
    assert 0 < difference < TOLERANCE[name]


@pytest.mark.parametrize("name", TOLERANCE)
def test_batches_answer_as_single_requests_do(name: str, folder: Path) -> None:
    driver = Driver(folder, kv_cache_dtype=name)
    alone = [driver.generate([driver.admit(make_req(p))], NUM_TOKENS)[0] for p in prompts()]
    driver.clear()
    reqs = [driver.admit(make_req(prompt)) for prompt in prompts()]
    assert driver.generate(reqs, NUM_TOKENS) == alone


def test_smaller_type_holds_more_tokens_in_the_same_memory(folder: Path) -> None:
    drivers = [Driver(folder, kv_cache_dtype=name) for name in ("auto", "bf16", "fp8_e4m3")]
    cells = [driver.runner.memory_plan.cell_bytes for driver in drivers]
    assert cells == [2 * 3 * 2 * 16 * size for size in (4, 2, 1)]
    pools = [driver.memory.token_to_kv_pool.get_kv_size_bytes() for driver in drivers]
    assert pools[0] == 2 * pools[1] == 4 * pools[2]


def test_arithmetic_is_logged(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="sglang.srt.model_executor.model_runner"):
        Driver(folder)
    [line] = [text for text in caplog.messages if text.startswith("KV pool")]
    assert line == (
        "KV pool: 3 layers x key and value x 2 heads x 16 numbers x 4 bytes (float32) = "
        "768 bytes a token; 2048 tokens = 0.00 GiB."
    )
