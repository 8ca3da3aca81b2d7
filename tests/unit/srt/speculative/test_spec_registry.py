"""Algorithms of plugins: guards in their order, the enum's questions, and the options' check."""

from collections.abc import Iterator
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

from sglang.srt.arg_groups import speculative
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative import spec_registry
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_registry import (
    _REGISTRY,
    CustomSpecAlgo,
    _reserved_names,
    register_algorithm,
    registered_algorithms,
)


class Worker:
    """What a factory returns."""


def factory(server_args: Any) -> type[Any]:
    return Worker


@pytest.fixture(autouse=True)
def no_algorithms() -> Iterator[None]:
    _REGISTRY.clear()
    yield
    _REGISTRY.clear()


QUESTIONS = [
    name
    for name, value in vars(SpeculativeAlgorithm).items()
    if name.startswith(("is_", "supports_")) and callable(value)
]


def test_decorator_returns_the_factory_and_the_name_counts_in_any_case() -> None:
    assert register_algorithm("my_alg")(factory) is factory
    assert registered_algorithms() == ["MY_ALG"]
    algorithm = SpeculativeAlgorithm.from_string("My_Alg")
    assert isinstance(algorithm, CustomSpecAlgo)
    assert algorithm.create_worker(SimpleNamespace()) is Worker
    assert repr(algorithm) == "CustomSpecAlgo('MY_ALG')"


def test_register_is_on_the_enum_too() -> None:
    SpeculativeAlgorithm.register("mine", supports_overlap=True)(factory)
    assert SpeculativeAlgorithm.from_string("mine").supports_overlap()


@pytest.mark.parametrize("name", [*SpeculativeAlgorithm.__members__, "NEXTN", "eagle"])
def test_reserved_names(name: str) -> None:
    with pytest.raises(ValueError) as caught:
        register_algorithm(name)
    assert str(caught.value) == (
        f"'{name.upper()}' is a reserved speculative algorithm name; cannot be re-registered."
    )


def test_a_new_member_is_reserved_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    members = {**SpeculativeAlgorithm.__members__, "BRAND_NEW": 1}
    monkeypatch.setattr(spec_registry, "SpeculativeAlgorithm", Enum("Grown", members))
    assert "BRAND_NEW" in _reserved_names()
    with pytest.raises(ValueError, match="'BRAND_NEW' is a reserved"):
        register_algorithm("brand_new")


def test_taken_name() -> None:
    register_algorithm("mine")(factory)
    with pytest.raises(ValueError) as caught:
        register_algorithm("Mine")
    assert str(caught.value) == "Speculative algorithm 'MINE' already registered."


def test_a_class_that_leaves_questions_open_is_told_which() -> None:
    incomplete = type(
        "Incomplete", (), {n: lambda self: False for n in QUESTIONS if n != "is_some"}
    )
    with pytest.raises(TypeError, match="Incomplete lacks is_some, which"):
        register_algorithm("mine", spec_class=incomplete)
    with pytest.raises(TypeError, match="is_frozen_kv_mtp"):
        register_algorithm("mine", spec_class=object)


def test_guards_run_in_their_order() -> None:
    register_algorithm("mine")(factory)
    with pytest.raises(ValueError, match="reserved"):
        register_algorithm("EAGLE", spec_class=object)
    with pytest.raises(ValueError, match="already registered"):
        register_algorithm("mine", spec_class=object)
    with pytest.raises(TypeError):
        register_algorithm("other", spec_class=object)


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_plugin_s_algorithm_answers_every_question(question: str) -> None:
    register_algorithm("mine")(factory)
    answer = getattr(SpeculativeAlgorithm.from_string("mine"), question)()
    assert answer is (question in ("is_some", "is_speculative"))


def test_it_equals_no_member() -> None:
    register_algorithm("mine")(factory)
    assert all(
        SpeculativeAlgorithm.from_string("mine") != member for member in SpeculativeAlgorithm
    )


def test_a_subclass_may_answer_otherwise() -> None:
    class Mine(CustomSpecAlgo):
        def is_eagle(self) -> bool:
            return True

        def create_worker(self, server_args: Any) -> type[Any]:
            return dict

    register_algorithm("mine", spec_class=Mine)(factory)
    algorithm = SpeculativeAlgorithm.from_string("mine")
    assert algorithm.is_eagle() and algorithm.create_worker(None) is dict


def test_overlapped_steps_need_support() -> None:
    overlapped = SimpleNamespace(disable_overlap_schedule=False)
    register_algorithm("plain")(factory)
    register_algorithm("fast", supports_overlap=True)(factory)
    with pytest.raises(ValueError, match="'PLAIN' does not support overlap scheduling"):
        SpeculativeAlgorithm.from_string("plain").create_worker(overlapped)
    assert SpeculativeAlgorithm.from_string("fast").create_worker(overlapped) is Worker


def test_names_of_the_enum() -> None:
    assert SpeculativeAlgorithm.from_string(None).is_none()
    assert SpeculativeAlgorithm.from_string("eagle3").is_eagle3()
    assert SpeculativeAlgorithm.from_string("nextn") is SpeculativeAlgorithm.EAGLE
    assert SpeculativeAlgorithm.DSPARK.is_dflash_family()
    with pytest.raises(ValueError) as caught:
        SpeculativeAlgorithm.from_string("nope")
    assert str(caught.value) == "Unknown speculative algorithm name: nope"
    with pytest.raises(ValueError, match="EAGLE is not served by this version; a plugin can"):
        SpeculativeAlgorithm.EAGLE.create_worker(None)


# ------------------------------------------------------------------ the option


def test_a_registered_name_is_an_option_s_value() -> None:
    register_algorithm("mine")(factory)
    args = ServerArgs(model_path="dummy", speculative_algorithm="mine")
    args.check_server_args()
    assert args.speculative_algorithm == "mine"


@pytest.mark.parametrize("name", ["EAGLE", "ngram", "NEXTN"])
def test_built_in_names_are_refused_in_one_sentence(name: str) -> None:
    register_algorithm("mine")(factory)
    with pytest.raises(ValueError) as caught:
        ServerArgs(model_path="dummy", speculative_algorithm=name)
    text = str(caught.value)
    assert text.startswith(f"{speculative.FLAG}: the speculative algorithm {name} is not served")
    assert "register_algorithm" in text and text.endswith("registered by plugins: MINE")


def test_the_algorithm_looks_at_the_options_and_may_set_some() -> None:
    def validate(args: Any) -> None:
        if args.page_size > 1:
            raise ValueError("mine needs --page-size 1")
        args.stream_interval = 4

    register_algorithm("mine", validate_server_args=validate)(factory)
    args = ServerArgs(model_path="dummy", speculative_algorithm="mine")
    assert args.stream_interval == 4
    with pytest.raises(ValueError, match="mine needs --page-size 1"):
        ServerArgs(model_path="dummy", speculative_algorithm="mine", page_size=16)


def test_drafts_and_prompts_are_not_mixed() -> None:
    register_algorithm("mine")(factory)
    args = ServerArgs(model_path="dummy", speculative_algorithm="mine", enable_mixed_chunk=True)
    assert args.enable_mixed_chunk is False
