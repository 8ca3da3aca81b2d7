"""Gemma 2 is transformers' model: windows in every other layer, caps, norms on both sides."""

from typing import Any

import pytest
from transformers import Gemma2Config, Gemma2ForCausalLM, PreTrainedModel

from sglang.srt.extension_points import RADIX_CACHE_BACKENDS
from sglang.srt.managers.process import parts_of
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache
from sglang.srt.mem_cache.registry import (
    TreeCacheBuildContext,
    default_radix_cache_factory,
    register_radix_cache_backend,
)
from sglang.srt.mem_cache.swa_memory import SWAKVPool
from sglang.srt.server_args import ServerArgs
from tests.unit.srt.managers.engine import EmptyInbox, RecordingOutbox, generate
from tests.unit.srt.models.driver import Driver
from tests.unit.srt.models.reference import (
    CHECKS,
    NUM_TOKENS,
    prompts,
    reference_answers,
    save_reference,
)
from tests.unit.srt.models.scheduled import ScheduledModel

VARIANTS: dict[str, dict[str, Any]] = {
    "caps": {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
    "no_caps": {"attn_logit_softcapping": None, "final_logit_softcapping": None},
    "wide_window": {"sliding_window": 64, "num_key_value_heads": 6},
}


@pytest.fixture(scope="module", params=VARIANTS)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Driver, PreTrainedModel]:
    folder = tmp_path_factory.mktemp("model")
    options = {"num_key_value_heads": 2, "sliding_window": 12, **VARIANTS[request.param]}
    sizes = {"num_hidden_layers": 4, "head_dim": 16, "query_pre_attn_scalar": 24}
    model = save_reference(
        folder,
        Gemma2Config,
        Gemma2ForCausalLM,
        attn_implementation="eager",
        **sizes,
        **options,
    )
    return Driver(folder), model


@pytest.mark.parametrize("check", CHECKS)
def test_equals_the_reference(check: str, pair: tuple[Driver, PreTrainedModel]) -> None:
    driver, model = pair
    driver.clear()
    CHECKS[check](driver, model)


def test_every_other_layer_has_the_window(pair: tuple[Driver, PreTrainedModel]) -> None:
    driver, model = pair
    window = model.config.sliding_window
    assert driver.runner.model_config.layer_windows == (window, -1, window, -1)


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("num_tokens", [400, 150])
def test_two_pools_answer_as_one(
    num_tokens: int, page_size: int, pair: tuple[Driver, PreTrainedModel]
) -> None:
    driver, model = pair
    scheduled = ScheduledModel(
        driver.path,
        disable_radix_cache=True,
        chunked_prefill_size=8,
        page_size=page_size,
        max_total_tokens=num_tokens,
        swa_full_tokens_ratio=0.95,
        schedule_conservativeness=0.01,
    )
    pool = scheduled.worker.memory.token_to_kv_pool
    assert isinstance(pool, SWAKVPool)
    assert [pool.is_window_layer(layer) for layer in range(4)] == [True, False, True, False]
    assert scheduled.answers(prompts() * 2, NUM_TOKENS) == reference_answers(model) * 2
    assert (scheduled.num_retractions > 0) == (num_tokens == 150)


def test_whole_prompts_find_room_without_a_second_pool(
    pair: tuple[Driver, PreTrainedModel],
) -> None:
    driver, model = pair
    longest = max(map(len, prompts()))
    scheduled = ScheduledModel(
        driver.path,
        disable_radix_cache=True,
        chunked_prefill_size=-1,
        max_total_tokens=longest + NUM_TOKENS,
        swa_full_tokens_ratio=0.5,
    )
    assert not isinstance(scheduled.worker.memory.token_to_kv_pool, SWAKVPool)
    assert scheduled.answers(prompts(), NUM_TOKENS) == reference_answers(model)
    too_long = generate("long", [1] * (scheduled.memory.size + 1), 1)
    scheduled.run([too_long])
    reason = scheduled.outbox.answers["long"].last.finish
    assert "does not fit the KV pool" in (reason.message or "")


@pytest.mark.parametrize("has_second_pool", [True, False])
def test_a_cache_backend_is_told_of_a_second_pool(
    has_second_pool: bool, pair: tuple[Driver, PreTrainedModel]
) -> None:
    told: list[bool] = []

    def factory(context: TreeCacheBuildContext) -> BasePrefixCache:
        told.append(context.is_hybrid_swa)
        return default_radix_cache_factory(context)

    register_radix_cache_backend("told", factory)
    try:
        args = ServerArgs(
            model_path=str(pair[0].path),
            device="cpu",
            dtype="float32",
            radix_cache_backend="told",
            disable_radix_cache=has_second_pool,
            chunked_prefill_size=8,
            max_total_tokens=400,
        )
        worker = TpModelWorker(args)
        parts_of(worker, worker, args, EmptyInbox(), RecordingOutbox())
    finally:
        del RADIX_CACHE_BACKENDS["told"]
    assert told == [has_second_pool]
