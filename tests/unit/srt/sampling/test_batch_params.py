"""Which requests the sampler must know up to their last token."""

from typing import Any

import pytest

from sglang.srt.core.request import Req
from sglang.srt.core.sampling_params import SamplingParams
from sglang.srt.sampling.batch_params import needs_history


def req_with(output_len: int = 0, **options: Any) -> Req:
    req = Req("r", [1], SamplingParams(**options).normalized())
    req.output_ids = [5] * output_len
    return req


@pytest.mark.parametrize(
    "options",
    [
        {"frequency_penalty": 0.1},
        {"presence_penalty": -0.1},
        {"repetition_penalty": 1.1},
        {"min_new_tokens": 3},
    ],
)
def test_what_depends_on_earlier_tokens_needs_them(options: dict[str, Any]) -> None:
    assert needs_history(req_with(output_len=2, **options))


def test_plain_and_biased_requests_need_nothing() -> None:
    assert not needs_history(req_with(temperature=0.7, top_p=0.9, logit_bias={3: 1.0}))
    assert not needs_history(req_with(stop=["x"], sampling_seed=4))


def test_minimum_that_is_reached_or_ignored_needs_nothing() -> None:
    assert not needs_history(req_with(output_len=3, min_new_tokens=3))
    assert not needs_history(req_with(min_new_tokens=3, ignore_eos=True))


def test_grammar_and_processor_need_every_token() -> None:
    constrained, processed = req_with(), req_with()
    constrained.grammar = processed.logit_processor = object()
    assert needs_history(constrained)
    assert needs_history(processed)
