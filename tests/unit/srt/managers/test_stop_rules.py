"""Stop strings come from the gateway's text library, which is loaded only when needed."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from sglang.srt.core.request import Req
from sglang.srt.core.sampling_params import SamplingParams
from sglang.srt.managers.stop_rules import StopRules, stop_text_factory


class Decoder:
    """Token n is the n-th letter; a token above 25 is half a letter, 98 is unknown."""

    def push(self, token_id: int) -> str:
        if token_id == 98:
            raise ValueError("no token 98")
        return chr(ord("a") + token_id) if token_id < 26 else ""


class Matcher:
    def __init__(self, stops: list[str], stop_regex: list[str], no_stop_trim: bool) -> None:
        self.text, self.stops = "", stops

    def push(self, text: str) -> SimpleNamespace:
        self.text += text
        matched = next((stop for stop in self.stops if stop in self.text), None)
        return SimpleNamespace(matched=matched)


@pytest.fixture
def text_library(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that tokenizers were read from."""
    folders: list[str] = []

    def tokenizer(folder: str) -> SimpleNamespace:
        folders.append(folder)
        return SimpleNamespace(decoder=lambda skip_special_tokens: Decoder())

    module = ModuleType("sglang_router.text")
    module.__dict__.update(Tokenizer=tokenizer, StopMatcher=Matcher)
    monkeypatch.setitem(sys.modules, "sglang_router", ModuleType("sglang_router"))
    monkeypatch.setitem(sys.modules, "sglang_router.text", module)
    return folders


def finish_after(tokens: list[int], **params: object) -> tuple[Req, int]:
    """The request and how many of the tokens it took before it ended."""
    rules = StopRules(100, stop_text_factory("folder"))
    sampling = SamplingParams(max_new_tokens=50, **params)  # type: ignore[arg-type]
    req = Req("r", [1], sampling, eos_token_ids=frozenset([99]))
    rules.prepare(req)
    for token in tokens:
        rules.append(req, token)
        if req.finished:
            break
    return req, len(req.output_ids)


def test_stop_string_across_tokens_ends(text_library: list[str]) -> None:
    req, taken = finish_after([0, 1, 2, 3], stop=["bc"])
    assert req.finished_reason is not None and req.finished_reason.matched == "bc"
    assert taken == 3


def test_stop_string_wins_over_a_stop_token(text_library: list[str]) -> None:
    req, _ = finish_after([0, 1], stop=["b"], stop_token_ids=[1])
    assert req.finished_reason is not None and req.finished_reason.matched == "b"


def test_stop_string_before_the_minimum_does_not_count(text_library: list[str]) -> None:
    req, taken = finish_after([1, 0, 0, 1, 0], stop=["b"], min_new_tokens=3)
    assert taken == 4


def test_token_without_text_ends_its_request_as_a_failure(text_library: list[str]) -> None:
    req, _ = finish_after([0, 98, 0], stop=["b"])
    assert req.finished_reason is not None
    assert (req.finished_reason.type, req.finished_reason.status_code) == ("abort", 500)


def test_tokenizer_is_read_once_and_only_for_stop_strings(text_library: list[str]) -> None:
    rules = StopRules(100, stop_text_factory("folder"))
    rules.prepare(Req("p", [1], SamplingParams(max_new_tokens=5)))
    assert text_library == []
    for rid in ("a", "b"):
        rules.prepare(Req(rid, [1], SamplingParams(max_new_tokens=5, stop=["x"])))
    assert text_library == ["folder"]


def test_end_token_ends_unless_ignored_or_too_early() -> None:
    assert finish_after([5, 99, 5])[1] == 2
    assert finish_after([5, 99, 5], ignore_eos=True)[0].finished_reason is None
    assert finish_after([99, 99, 99, 5], min_new_tokens=3)[1] == 3


def test_length_is_the_last_rule() -> None:
    req = Req("r", [1], SamplingParams(max_new_tokens=1), eos_token_ids=frozenset([9]))
    StopRules(100, stop_text_factory("folder")).append(req, 9)
    assert req.finished_reason is not None and req.finished_reason.type == "stop"
