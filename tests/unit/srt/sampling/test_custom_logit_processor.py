"""Processors change their own requests' logits only; a broken one costs nothing but its request."""

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from sglang.srt.core.request import Req
from sglang.srt.core.sampling_params import SamplingParams
from sglang.srt.extension_points import LOGIT_PROCESSORS
from sglang.srt.sampling import custom_logit_processor
from sglang.srt.sampling.custom_logit_processor import (
    CustomLogitProcessor,
    DisallowedTokensLogitsProcessor,
    ThinkingBudgetLogitProcessor,
    find_processor,
    register_logit_processor,
)
from sglang.srt.sampling.sampler import Sampler

VOCAB = 16
END, START = 9, 8


def req_with(processor: Any, output: list[int] | None = None, **custom_params: Any) -> Req:
    req = Req("r", [1, START, 2], SamplingParams(temperature=0.0).normalized())
    req.output_ids = output or []
    req.logit_processor = processor
    req.logit_processor_params = {**custom_params, "__req__": req}
    return req


def choose(*reqs: Req, is_final: bool = True, return_logprob: bool = False) -> list[int]:
    """The tokens chosen where token 15 is the best one for everybody."""
    rows = torch.linspace(-2, 2, VOCAB).repeat(len(reqs), 1)
    sampler = Sampler(VOCAB, torch.device("cpu"), 0)
    return sampler.sample(rows, reqs, [req.seq_len for req in reqs], [is_final] * len(reqs))[0]


class Recorder(CustomLogitProcessor):
    """Forces `force`; notes the calls."""

    def __init__(self) -> None:
        self.calls: list[list[dict[str, Any]]] = []

    def __call__(
        self, logits: torch.Tensor, custom_param_list: list[dict[str, Any]] | None = None
    ) -> torch.Tensor:
        assert custom_param_list is not None
        self.calls.append(custom_param_list)
        for row, params in enumerate(custom_param_list):
            if "raises" in params:
                raise params["raises"]
            logits[row, params["force"]] = 100.0
        return logits


def test_requests_of_one_processor_are_one_call_with_their_own_params() -> None:
    recorder, plain = Recorder(), req_with(None)
    first, second = req_with(recorder, force=3), req_with(recorder, force=4)
    assert choose(first, plain, second) == [3, 15, 4]
    (call,) = recorder.calls
    assert [(p["force"], p["__req__"]) for p in call] == [(3, first), (4, second)]


def test_what_a_processor_keeps_in_its_params_is_there_in_the_next_step() -> None:
    recorder = Recorder()
    req = req_with(recorder, force=3)
    choose(req)
    choose(req)
    assert recorder.calls[0][0] is recorder.calls[1][0]


def test_a_prompt_that_goes_on_is_not_processed() -> None:
    recorder = Recorder()
    choose(req_with(recorder, force=3), is_final=False)
    assert recorder.calls == []


def test_one_that_raises_ends_its_own_request_and_the_others_are_processed() -> None:
    recorder = Recorder()
    bad, good = req_with(recorder, raises=RuntimeError("ouch")), req_with(recorder, force=4)
    assert choose(bad, good)[1] == 4
    assert good.to_finish is None
    assert bad.to_finish is not None
    assert bad.to_finish.status_code == 500
    assert bad.to_finish.message == "custom_logit_processor failed: RuntimeError: ouch"


@pytest.mark.parametrize(
    ("error", "is_uploaded", "status"),
    [
        (ValueError("token_ids"), False, 400),
        (RuntimeError("fault"), False, 500),
        (RuntimeError("fault"), True, 400),
        (SystemExit(1), True, 400),
        (KeyboardInterrupt(), True, 400),
        (GeneratorExit(), False, 500),
    ],
)
def test_whose_mistake_a_failure_is(error: BaseException, is_uploaded: bool, status: int) -> None:
    req = req_with(Recorder(), raises=error)
    req.has_uploaded_processor = is_uploaded
    choose(req)
    assert req.to_finish is not None
    assert req.to_finish.status_code == status


@pytest.mark.parametrize(
    ("error", "is_uploaded"), [(ValueError("two\nlines" + "x" * 999), False), (KeyError("k"), True)]
)
def test_a_clients_mistake_is_one_line_in_the_log(
    error: BaseException, is_uploaded: bool, caplog: pytest.LogCaptureFixture
) -> None:
    req = req_with(Recorder(), raises=error)
    req.has_uploaded_processor = is_uploaded
    with caplog.at_level(logging.DEBUG):
        choose(req)
    shown, detail = caplog.records
    assert shown.levelno == logging.WARNING and shown.exc_info is None
    line = shown.getMessage()
    assert f"Recorder of {req.rid} failed: {type(error).__name__}: " in line
    assert "\n" not in line and len(line) <= 301
    assert detail.levelno == logging.DEBUG and detail.exc_info is not None


def test_the_servers_mistake_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    choose(req_with(Recorder(), raises=RuntimeError("fault")))
    (record,) = caplog.records
    assert record.levelno == logging.ERROR and record.exc_info is not None


class Textless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "text"),
    [(Textless(), "Textless: without a text, RuntimeError"), (RuntimeError("\ud800!"), "?!")],
)
def test_an_error_whose_text_is_broken_costs_its_own_request_only(
    error: Exception, text: str
) -> None:
    bad, good = req_with(Recorder(), raises=error), req_with(Recorder(), force=4)
    assert choose(bad, good)[1] == 4
    assert bad.to_finish is not None
    assert text in (bad.to_finish.message or "")
    assert msgspec.msgpack.encode(bad.to_finish)


@pytest.mark.parametrize(
    "broken",
    [
        lambda logits, params: logits[:, 1:],
        lambda logits, params: logits[0],
        lambda logits, params: None,
        lambda logits, params: logits.tolist(),
        lambda logits, params: logits * float("nan"),
        lambda logits, params: logits - torch.inf,
        lambda logits, params: logits.fill_(torch.inf),
    ],
)
def test_no_answer_goes_on_with_logits_that_are_none(broken: Any) -> None:
    bad, good = req_with(broken), req_with(Recorder(), force=4)
    assert choose(bad, good)[1] == 4
    assert good.to_finish is None
    assert bad.to_finish is not None
    assert bad.to_finish.type == "abort"


def test_a_row_that_is_broken_costs_only_its_own_request() -> None:
    recorder = Recorder()

    def breaks_some(logits: torch.Tensor, params: list[dict[str, Any]]) -> torch.Tensor:
        logits[[p["breaks"] for p in params]] = torch.nan
        return recorder(logits, params)

    bad, good = (req_with(breaks_some, force=4, breaks=breaks) for breaks in (True, False))
    assert choose(bad, good)[1] == 4
    assert (bad.to_finish is None, good.to_finish is None) == (False, True)


def test_a_grammar_has_the_last_word() -> None:
    from tests.unit.srt.sampling.test_sampler import OnlyToken

    req = req_with(Recorder(), force=3)
    req.grammar = OnlyToken(6)
    assert choose(req) == [6]


# ------------------------------------------------------------------ built-in ones


def test_disallowed_tokens_are_never_chosen() -> None:
    processor = DisallowedTokensLogitsProcessor()
    banned = req_with(processor, token_ids=[15, 14.0])
    assert choose(banned, req_with(processor, token_ids=[])) == [13, 15]


@pytest.mark.parametrize("given", [[16], [-1], [1.5], [1e300], [float("inf")], ["a"], None])
def test_disallowed_tokens_must_be_ids_of_the_vocabulary(given: Any) -> None:
    req = req_with(DisallowedTokensLogitsProcessor(), token_ids=given)
    choose(req)
    assert req.to_finish is not None
    assert req.to_finish.status_code == 400
    assert "custom_params.token_ids must be ids of the vocabulary, 0 … 15" in (
        req.to_finish.message or ""
    )


@pytest.mark.parametrize(
    ("output", "budget", "wanted"),
    [
        ([], 2, 15),
        ([5], 2, 15),
        ([5, 6], 2, END),
        ([5, 6, END], 2, 15),
        ([], 0, END),
    ],
)
def test_thinking_ends_after_its_budget(output: list[int], budget: int, wanted: int) -> None:
    req = req_with(
        ThinkingBudgetLogitProcessor(), output, thinking_budget=budget, think_end_token_id=END
    )
    assert choose(req) == [wanted]


@pytest.mark.parametrize(
    ("output", "wanted"),
    [([], 15), ([5], END), ([5, END], 15), ([END, START], 15), ([END, START, 5, 6], END)],
)
def test_thinking_starts_behind_its_token(output: list[int], wanted: int) -> None:
    req = req_with(
        ThinkingBudgetLogitProcessor(), output,
        thinking_budget=2, think_end_token_id=END, think_start_token_id=START,
    )  # fmt: skip
    assert choose(req) == [wanted]


def test_without_a_start_in_prompt_or_answer_nothing_is_thought() -> None:
    req = req_with(
        ThinkingBudgetLogitProcessor(), [5, 6, 7],
        thinking_budget=2, think_end_token_id=END, think_start_token_id=3,
    )  # fmt: skip
    assert choose(req) == [15]


@pytest.mark.parametrize("params", [{}, {"thinking_budget": 1}, {"thinking_budget": -1}])
def test_thinking_needs_its_params(params: dict[str, Any]) -> None:
    req = req_with(ThinkingBudgetLogitProcessor(), [5, 6], **params)
    choose(req)
    assert req.to_finish is not None
    assert "custom_params.think" in (req.to_finish.message or "")


@pytest.mark.parametrize("given", ["a", [START], -1, VOCAB, 1.5])
def test_thinking_starts_with_an_id_of_the_vocabulary(given: Any) -> None:
    req = req_with(
        ThinkingBudgetLogitProcessor(), [5, 6],
        thinking_budget=2, think_end_token_id=END, think_start_token_id=given,
    )  # fmt: skip
    choose(req)
    assert req.to_finish is not None and req.to_finish.status_code == 400
    assert "custom_params.think_start_token_id must be ids" in (req.to_finish.message or "")


# ------------------------------------------------------------------ texts


def test_builtin_ones_are_written_as_names() -> None:
    text = DisallowedTokensLogitsProcessor().to_str()
    assert text == "disallowed_tokens"
    assert isinstance(CustomLogitProcessor.from_str(text), DisallowedTokensLogitsProcessor)
    assert ThinkingBudgetLogitProcessor.to_str() == "thinking_budget"


def uploaded_class(token_id: int = 5) -> type[CustomLogitProcessor]:
    class Forces(CustomLogitProcessor):
        def __call__(
            self, logits: torch.Tensor, custom_param_list: list[dict[str, Any]] | None = None
        ) -> torch.Tensor:
            logits[:, token_id] = 100.0
            return logits

    return Forces


def test_a_class_survives_the_way_through_its_text() -> None:
    text = uploaded_class().to_str()
    assert list(json.loads(text)) == ["callable"]
    assert choose(req_with(CustomLogitProcessor.from_str(text))) == [5]


SCRIPT = """
import math

from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

TOKEN = 6


class Forces(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        logits[:, TOKEN] = math.inf
        return logits.clamp(max=100.0)


print(Forces.to_str())
"""


def test_a_class_of_a_script_brings_what_it_uses_of_it(tmp_path: Path) -> None:
    (script := tmp_path / "client.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], capture_output=True, check=True, text=True)
    assert choose(req_with(CustomLogitProcessor.from_str(done.stdout))) == [6]


def test_equal_texts_get_one_object() -> None:
    text = uploaded_class().to_str()
    assert find_processor(text, allows_uploaded=True) is find_processor(text, allows_uploaded=True)
    names = [find_processor("disallowed_tokens", allows_uploaded=False) for _ in range(2)]
    assert names[0] is names[1]


def test_nothing_uploaded_is_read_without_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    import dill

    monkeypatch.setattr(dill, "loads", lambda data: pytest.fail("unpickled"))
    with pytest.raises(ValueError, match="--enable-custom-logit-processor") as refusal:
        find_processor(uploaded_class().to_str(), allows_uploaded=False)
    assert len(str(refusal.value)) < 500


@pytest.mark.parametrize(
    "text",
    ["disallowed", "{}", "[]", '{"callable": 1}', '{"callable": "zz"}', '{"callable": "80"}'],
)
def test_what_is_no_processor_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="neither a registered name nor a class"):
        find_processor(text, allows_uploaded=True)


def test_an_upload_that_cannot_be_made_or_called_is_refused() -> None:
    import dill

    for thing in (3, object, lambda: 1 / 0):
        text = json.dumps({"callable": dill.dumps(thing).hex()})
        with pytest.raises(ValueError, match="cannot be made|must be callable"):
            find_processor(text, allows_uploaded=True)


def test_plugins_register_theirs_by_name() -> None:
    try:
        registered = register_logit_processor("forces-seven")(uploaded_class(7))
        assert registered.to_str() == "forces-seven"
        found = find_processor("forces-seven", allows_uploaded=False)
        assert choose(req_with(found)) == [7]
        with pytest.raises(ValueError, match="already registered"):
            register_logit_processor("forces-seven")(uploaded_class(8))
    finally:
        del LOGIT_PROCESSORS["forces-seven"]
        custom_logit_processor._registered.cache_clear()
