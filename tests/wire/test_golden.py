"""The same messages on both sides: `golden/NAME.json` is a message, `NAME.hex` its bytes.

The gateway's tests read the same files.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from sglang.srt.core.messages import (
    FinishReason,
    LogprobRows,
    RequestOutput,
    RequestTimes,
    SessionRef,
    TopRow,
)
from sglang.srt.core.sampling_params import SamplingParams
from sglang.srt.entrypoints import grpc_convert, wire

GOLDEN = Path(__file__).parent / "golden"
MESSAGES = {
    "generate_request": "GenerateRequest",
    "generate_chunk": "GenerateResponse",
    "generate_complete": "GenerateResponse",
}


def golden_bytes(name: str) -> bytes:
    return bytes.fromhex((GOLDEN / f"{name}.hex").read_text())


def golden(name: str) -> Any:
    return wire.scheduler(MESSAGES[name]).FromString(golden_bytes(name))


@pytest.mark.parametrize("name", MESSAGES)
def test_bytes_and_json_are_the_same_message(name: str) -> None:
    as_json = json_format.MessageToDict(golden(name), preserving_proto_field_name=True)
    assert as_json == json.loads((GOLDEN / f"{name}.json").read_text())


def test_every_sampling_parameter_arrives() -> None:
    assert grpc_convert.sampling_params(golden("generate_request").sampling_params) == (
        SamplingParams(
            temperature=0.75, top_p=0.5, top_k=40, min_p=0.125, frequency_penalty=0.25,
            presence_penalty=-0.5, repetition_penalty=1.25, max_new_tokens=0, min_new_tokens=4,
            stop=["END", "\u2603"], stop_token_ids=[2, 49152], stop_regex=["a+b"],
            skip_special_tokens=True, spaces_between_special_tokens=True, ignore_eos=True,
            no_stop_trim=True, json_schema='{"type":"object"}', n=2, stream_interval=8,
            logit_bias={9: -1.5, 100: 2.0}, custom_params={"level": 3, "tags": ["x", None]},
            sampling_seed=-1234567890123,
        )
    )  # fmt: skip


def test_every_request_field_arrives() -> None:
    request = golden("generate_request")
    request.sampling_params.min_new_tokens = 0  # the golden one asks for more than it allows
    inputs = grpc_convert.generate_inputs(request, vocab_size=49153, context_len=100, deadline=12.5)
    assert [entry.rid for entry in inputs] == ["req-7#0", "req-7#1"]
    for entry in inputs:
        assert entry.input_ids == [1, 300, 49151]
        assert (entry.return_logprob, entry.logprob_start_len, entry.top_logprobs_num) == (
            True, 2, 5,
        )  # fmt: skip
        assert (entry.token_ids_logprob, entry.stream, entry.priority) == ([11, 12], True, -3)
        assert (entry.extra_key, entry.deadline) == ("salt", 12.5)
        assert (entry.routing_key, entry.lora_name) == ("tenant-1", "adapter")
        assert entry.custom_logit_processor == '{"callable": "x"}'
        assert entry.session == SessionRef(
            id="talk", rid="req-6", offset=17, replace=True, drop_previous_output=True
        )
        assert entry.sampling.n == 1
    assert inputs[1].sampling.sampling_seed != inputs[0].sampling.sampling_seed


def test_proto_zeros_become_the_documented_defaults() -> None:
    params = grpc_convert.sampling_params(wire.scheduler("SamplingParams")())
    assert (params.top_p, params.top_k, params.repetition_penalty, params.n) == (1.0, -1, 1.0, 1)
    assert params.temperature == 0.0  # greedy: absent and zero are the same on the wire
    assert params.max_new_tokens is None and params.sampling_seed is None


def test_numbers_of_a_processor_are_whole_where_they_were() -> None:
    message = wire.scheduler("SamplingParams")()
    given = {"ids": [1, 2.5, -3], "on": True, "deep": {"none": None, "text": "1"}, "big": 2**52}
    message.custom_params.update(given)
    params = grpc_convert.sampling_params(message).custom_params
    assert params == given and type(params["ids"][0]) is type(params["big"]) is int


def test_a_request_without_a_session_has_none_and_one_without_an_id_is_refused() -> None:
    request = wire.scheduler("GenerateRequest")(request_id="a")
    request.tokenized.input_ids.append(1)
    (entry,) = grpc_convert.generate_inputs(request, vocab_size=2, context_len=8, deadline=None)
    assert (entry.session, entry.routing_key, entry.custom_logit_processor) == (None,) * 3
    request.session.SetInParent()
    with pytest.raises(grpc_convert.InvalidRequest, match="session.id"):
        grpc_convert.generate_inputs(request, vocab_size=2, context_len=8, deadline=None)
    request.session.id = "s"
    (entry,) = grpc_convert.generate_inputs(request, vocab_size=2, context_len=8, deadline=None)
    assert entry.session == SessionRef(id="s")


@pytest.mark.parametrize(
    ("field", "ours"),
    [("regex", "regex"), ("json_schema", "json_schema"), ("ebnf_grammar", "ebnf"),
     ("structural_tag", "structural_tag")],
)  # fmt: skip
def test_each_constraint_has_its_field(field: str, ours: str) -> None:
    message = wire.scheduler("SamplingParams")(**{field: "x"})
    assert getattr(grpc_convert.sampling_params(message), ours) == "x"
    assert getattr(grpc_convert.sampling_params(type(message)(**{field: ""})), ours) is None


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({}, None), ({"extra_key": ""}, ""), ({"cache_salt": "s"}, "s"),
     ({"extra_key": "k", "cache_salt": "s"}, "ks")],
)  # fmt: skip
def test_cache_namespace(fields: dict[str, str], expected: str | None) -> None:
    request = wire.scheduler("GenerateRequest")(request_id="a", **fields)
    request.tokenized.input_ids.append(1)
    (entry,) = grpc_convert.generate_inputs(request, vocab_size=2, context_len=8, deadline=None)
    assert entry.extra_key == expected


def test_greedy_is_canonical_for_the_scheduler() -> None:
    request = wire.scheduler("GenerateRequest")(request_id="a")
    request.tokenized.input_ids.append(1)
    request.sampling_params.temperature = 1e-30
    request.sampling_params.top_p = 0.5
    (entry,) = grpc_convert.generate_inputs(request, vocab_size=2, context_len=8, deadline=None)
    assert entry.sampling.is_greedy


@pytest.fixture
def fixed_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_convert, "monotonic_start", lambda: 1000.0)


@pytest.mark.usefixtures("fixed_clock")
def test_chunk_is_the_golden_one() -> None:
    output = RequestOutput(
        rid="any", token_ids=[7, 49151], prompt_tokens=3, completion_tokens=2, cached_tokens=1,
        output_logprobs=LogprobRows(
            logprobs=[-0.25, -0.5], token_ids=[7, 49151],
            top=[TopRow([-0.25, -1.5], [7, 8]), TopRow([-0.5, -0.75], [49151, 9])],
            chosen=[TopRow([-2.0], [11]), TopRow([-4.0], [11])],
        ),
        input_logprobs=LogprobRows(
            logprobs=[None, -0.125], token_ids=[1, 300],
            top=[None, TopRow([-0.125, -3.0], [300, 301])], chosen=[None, TopRow([-8.0], [11])],
        ),
        cached_tokens_details={"device": 0, "host": 1, "storage": 0},
        times=RequestTimes(received=0.25, compiled=0.5, admissions=[1.0, 9.0], prefilled=1.5),
    )  # fmt: skip
    assert grpc_convert.chunk("req-7", 1, output, opens=True) == golden("generate_chunk")
    later = grpc_convert.chunk("req-7", 1, output, opens=False).chunk
    assert not (later.HasField("cached_tokens_details") or later.HasField("times"))


@pytest.mark.usefixtures("fixed_clock")
def test_complete_is_the_golden_one() -> None:
    output = RequestOutput(
        rid="any", token_ids=[7, 49151], prompt_tokens=3, completion_tokens=2, cached_tokens=1,
        num_retractions=5, finish=FinishReason(type="stop", matched="END"),
        cached_tokens_details={"device": 1, "host": 0, "storage": 0},
        times=RequestTimes(received=0.25, admissions=[1.0], finished=3.0),
    )  # fmt: skip
    expected = golden("generate_complete")
    for field in ("reasoning_tokens", "spec_accepted_tokens", "spec_draft_tokens"):
        expected.complete.ClearField(field)  # of other engines; this one has nothing to count
    assert grpc_convert.complete("req-7", 1, output) == expected
