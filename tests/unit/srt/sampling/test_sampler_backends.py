"""Samplers are made by name."""

import logging

import pytest
import torch

from sglang.srt.extension_points import SAMPLER_BACKENDS
from sglang.srt.sampling.sampler import Sampler
from sglang.srt.sampling.sampler_backends import (
    SamplerContext,
    create_sampler,
    register_sampler_backend,
)

CONTEXT = SamplerContext(vocab_size=10, device=torch.device("cpu"), random_seed=1)


class Mine(Sampler):
    """A plugin's sampler."""


def make_mine(context: SamplerContext) -> Mine:
    return Mine(context.vocab_size, context.device, context.random_seed)


def test_the_built_in_one_is_the_default() -> None:
    assert type(create_sampler(context=CONTEXT)) is Sampler
    assert type(create_sampler("pytorch", context=CONTEXT)) is Sampler


def test_unknown_one_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="Unknown sampling backend 'pytorsh'; did you mean"):
        create_sampler("pytorsh", context=CONTEXT)


def test_registered_one_is_made_and_may_be_replaced_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    try:
        register_sampler_backend("mine", make_mine)
        assert type(create_sampler("mine", context=CONTEXT)) is Mine
        with caplog.at_level(logging.WARNING):
            register_sampler_backend("mine", make_mine)
        assert "'mine'" in caplog.text
    finally:
        del SAMPLER_BACKENDS["mine"]
