"""What requests say over gRPC arrives as the engine's own types."""

from typing import Any

import msgspec
import pytest

from sglang.srt.entrypoints import wire
from sglang.srt.entrypoints.grpc_convert import generate_inputs


def custom_params(given: dict[str, Any]) -> dict[str, Any] | None:
    request = wire.scheduler("GenerateRequest")(request_id="r")
    request.tokenized.input_ids.append(1)
    request.sampling_params.custom_params.update(given)
    (wanted,) = generate_inputs(request, vocab_size=8, context_len=8, deadline=None)
    assert msgspec.msgpack.encode(wanted)  # it goes on to the scheduler like this
    return wanted.sampling.custom_params


@pytest.mark.parametrize("number", [2.0**63, 2.0**70, -(2.0**64), 1e300, float("inf")])
def test_numbers_too_large_to_be_whole_stay_doubles(number: float) -> None:
    params = custom_params({"a": number, "deep": {"list": [number, 5]}})
    assert params == {"a": number, "deep": {"list": [number, 5]}}
    assert isinstance(params["a"], float)
    assert isinstance(params["deep"]["list"][1], int)


@pytest.mark.parametrize("number", [0, -1, 2**53, -(2**53)])
def test_whole_numbers_of_custom_params_arrive_whole(number: int) -> None:
    params = custom_params({"a": number})
    assert params == {"a": number}
    assert isinstance(params["a"], int)
