"""Options of adapters."""

from types import SimpleNamespace
from typing import Any

import pytest

from sglang.srt.arg_groups.lora import LoRAArgs, LoRAPath, check_lora, fill_lora, lora_paths_of
from sglang.srt.server_args import ServerArgs, prepare_server_args


def filled(**options: Any) -> LoRAArgs:
    args = LoRAArgs(**options)
    fill_lora(args)
    return args


@pytest.mark.parametrize(
    "entry",
    [
        "a=/p",
        '{"lora_name": "a", "lora_path": "/p"}',
        {"lora_name": "a", "lora_path": "/p", "pinned": False},
        SimpleNamespace(lora_name="a", lora_path="/p", pinned=False),
    ],
)
def test_an_adapter_is_given_in_any_of_the_documented_forms(entry: Any) -> None:
    assert lora_paths_of(filled(lora_paths=[entry])) == [LoRAPath("a", "/p")]


def test_a_bare_path_is_its_own_name() -> None:
    assert lora_paths_of(filled(lora_paths=["x/y"])) == [LoRAPath("x/y", "x/y")]


def test_programs_may_give_paths_by_name() -> None:
    args = filled(lora_paths={"a": "/p", "b": "/q"})
    assert [path.lora_name for path in lora_paths_of(args)] == ["a", "b"]
    assert args.enable_lora


def test_a_program_s_forms_are_taken_by_the_options_as_a_whole() -> None:
    args = ServerArgs("dummy", lora_paths={"a": "/p"}, lora_target_modules={"v_proj", "q_proj"})  # type: ignore[arg-type]
    assert args.lora_paths == ["a=/p"]
    assert args.lora_target_modules == ["q_proj", "v_proj"]


def test_a_json_object_on_the_command_line_is_one_entry() -> None:
    argv = ["--model-path", "dummy", "--lora-paths", '{"lora_name":"a","lora_path":"/p"}', "b=/q"]
    args = prepare_server_args(argv)
    assert [path.lora_name for path in lora_paths_of(args)] == ["a", "b"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"lora_paths": [{"lora_name": "a", "lora_path": 3}]}, "NAME=PATH"),
        ({"lora_paths": ["{a"]}, "not valid JSON"),
        (
            {
                "lora_paths": [{"lora_name": "a", "lora_path": "p", "pinned": True}],
                "max_loras_per_batch": 1,
            },
            "1 adapters are pinned",
        ),
        (
            {"lora_paths": ["a", "b", "c"], "max_loras_per_batch": 2, "max_loaded_loras": 2},
            "names 3 adapters",
        ),
    ],
)
def test_contradictions_are_refused(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        check_lora(filled(**options), "m", None)


@pytest.mark.parametrize(("algorithm", "fits"), [(None, True), ("NGRAM", True), ("EAGLE", False)])
def test_only_one_kind_of_speculation_goes_with_adapters(algorithm: str | None, fits: bool) -> None:
    args = filled(lora_paths=["a"])
    if fits:
        check_lora(args, "m", algorithm)
    else:
        with pytest.raises(ValueError, match="EAGLE"):
            check_lora(args, "m", algorithm)
