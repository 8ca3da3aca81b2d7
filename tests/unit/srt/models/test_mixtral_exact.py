"""Mixtral is transformers' model."""

import pytest
from transformers import MixtralConfig, MixtralForCausalLM, PreTrainedModel

from tests.unit.srt.models.driver import Driver
from tests.unit.srt.models.reference import CHECKS, save_reference


@pytest.fixture(scope="module", params=[None, 12], ids=["no_window", "window"])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Driver, PreTrainedModel]:
    folder = tmp_path_factory.mktemp("model")
    model = save_reference(
        folder,
        MixtralConfig,
        MixtralForCausalLM,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=request.param,
    )
    return Driver(folder), model


@pytest.mark.parametrize("check", CHECKS)
def test_equals_the_reference(check: str, pair: tuple[Driver, PreTrainedModel]) -> None:
    driver, model = pair
    driver.clear()
    CHECKS[check](driver, model)
