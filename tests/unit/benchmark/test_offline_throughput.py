"""The benchmark of throughput, with a played backend."""

from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import pre_tokenizers
from tokenizers.models import BPE

from sglang.benchmark.offline_throughput import (
    MOST_PROMPTS,
    NUM_WARM_UPS,
    WARM_UP_LEN,
    OfflineOptions,
    RuntimeBackend,
    measure,
)

SMALL = {"num_prompts": 20, "random_input_len": 40, "random_output_len": 8, "random_range_ratio": 1}


class PlayedBackend:
    """Answers as long as it is asked for, and notes the calls."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer_folder = str(folder)
        self.calls: list[Any] = []

    def answer(self, fields: dict[str, Any]) -> list[Any]:
        self.calls.append(fields)
        prompts = fields.get("input_ids") or fields["text"]
        lens = [params["max_new_tokens"] for params in fields["sampling_params"]]
        pairs = zip(prompts, lens, strict=True)
        return [
            {"meta_info": {"prompt_tokens": len(prompt), "completion_tokens": length}}
            for prompt, length in pairs
        ]

    def flush(self) -> None:
        self.calls.append("flush")


@pytest.fixture
def backend(tmp_path: Path) -> PlayedBackend:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    model = tokenizers.Tokenizer(BPE({one: i for i, one in enumerate(letters)}, []))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.save(str(tmp_path / "tokenizer.json"))
    return PlayedBackend(tmp_path)


def test_everything_is_asked_at_once_after_a_warm_up(backend: PlayedBackend) -> None:
    got = measure(OfflineOptions(**SMALL), backend)
    warm_up, flush, measured = backend.calls
    assert len(warm_up["input_ids"]) == NUM_WARM_UPS
    assert max(map(len, warm_up["input_ids"])) == WARM_UP_LEN
    assert flush == "flush"
    assert len(measured["input_ids"]) == 20
    assert measured["sampling_params"][0] == {
        "temperature": 0.0, "ignore_eos": True, "max_new_tokens": 8,
    }  # fmt: skip
    assert (got.successful_requests, got.total_input_tokens) == (20, 20 * 40)
    assert got.total_output_tokens == 20 * 8
    assert got.total_throughput == pytest.approx(got.input_throughput + got.output_throughput)
    assert any(line.startswith("Request throughput (req/s):") for line in got.lines())


def test_options_reach_the_answers(backend: PlayedBackend) -> None:
    options = OfflineOptions(
        **SMALL, skip_warmup=True, disable_ignore_eos=True, return_logprob=True,
        extra_request_body='{"top_p": 0.5}',
    )  # fmt: skip
    measure(options, backend)
    (measured,) = backend.calls
    assert measured["return_logprob"] is True
    assert measured["sampling_params"][0]["top_p"] == 0.5
    assert measured["sampling_params"][0]["ignore_eos"] is False


def test_shared_prefixes_are_asked_too(backend: PlayedBackend) -> None:
    options = OfflineOptions(
        dataset_name="generated-shared-prefix", gsp_num_groups=2, gsp_prompts_per_group=3,
        gsp_system_prompt_len=5, gsp_question_len=2, gsp_output_len=1, skip_warmup=True,
    )  # fmt: skip
    measure(options, backend)
    prompts = backend.calls[0]["input_ids"]
    assert len({tuple(ids[:5]) for ids in prompts}) == 2
    assert len({tuple(ids) for ids in prompts}) == 6


def test_runtime_gets_no_more_prompts_than_one_request_may_hold() -> None:
    asked = []

    class Endpoint:
        model_info = {"tokenizer_path": "folder"}

        def ask(self, body: dict[str, Any]) -> list[Any]:
            asked.append(body)
            return [{"of": ids} for ids in body["input_ids"]]

    class Runtime:
        endpoint = Endpoint()

    prompts = [[number] for number in range(MOST_PROMPTS + 1)]
    params = [{"max_new_tokens": number} for number in range(MOST_PROMPTS + 1)]
    replies = RuntimeBackend(Runtime()).answer({"input_ids": prompts, "sampling_params": params})
    assert [reply["of"] for reply in replies] == prompts
    assert [len(body["input_ids"]) for body in asked] == [MOST_PROMPTS, 1]
    assert asked[1]["sampling_params"] == [{"max_new_tokens": MOST_PROMPTS}]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_prompts": 0}, "--num-prompts must be at least 1"),
        ({"dataset_name": "sharegpt"}, "--dataset-path is required"),
        ({"extra_request_body": "["}, "--extra-request-body is not JSON"),
    ],
)
def test_mistake_is_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        OfflineOptions(**options).check()
