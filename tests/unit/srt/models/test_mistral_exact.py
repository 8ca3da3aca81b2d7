"""Mistral and Qwen2 with windows are transformers' models, also beyond the window."""

from typing import Any

import pytest
from transformers import (
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from tests.unit.srt.models.driver import Driver
from tests.unit.srt.models.reference import CHECKS, reference_logits, save_reference

MISTRAL, QWEN2 = (MistralConfig, MistralForCausalLM), (Qwen2Config, Qwen2ForCausalLM)
VARIANTS: dict[str, tuple[tuple[Any, Any], dict[str, Any]]] = {
    "every_layer": (MISTRAL, {"sliding_window": 12}),
    "two_tokens": (MISTRAL, {"sliding_window": 2}),
    "no_window": (MISTRAL, {"sliding_window": None}),
    "upper_layers": (
        QWEN2,
        {"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1},
    ),
}
WINDOWS = {
    "every_layer": (12, 12, 12),
    "two_tokens": (2, 2, 2),
    "no_window": (),
    "upper_layers": (-1, 12, 12),
}


@pytest.fixture(scope="module", params=VARIANTS)
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Driver, PreTrainedModel]:
    folder = tmp_path_factory.mktemp("model")
    classes, options = VARIANTS[request.param]
    model = save_reference(folder, *classes, num_key_value_heads=2, **options)
    return request.param, Driver(folder), model


@pytest.mark.parametrize("check", CHECKS)
def test_equals_the_reference(check: str, case: tuple[str, Driver, PreTrainedModel]) -> None:
    _, driver, model = case
    driver.clear()
    CHECKS[check](driver, model)


def test_windows_are_read_and_leave_the_context_whole(
    case: tuple[str, Driver, PreTrainedModel],
) -> None:
    name, driver, _ = case
    config = driver.runner.model_config
    assert (config.layer_windows, config.context_len) == (WINDOWS[name], 256)


def test_what_fell_out_of_every_window_is_not_seen(
    case: tuple[str, Driver, PreTrainedModel],
) -> None:
    name, _, model = case
    prompt = list(range(90))
    other = [200, *prompt[1:]]
    same = reference_logits(model, prompt)[-1].equal(reference_logits(model, other)[-1])
    assert same == (name in ("every_layer", "two_tokens"))
