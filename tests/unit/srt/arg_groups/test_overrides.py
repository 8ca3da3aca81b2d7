"""Options that follow from the model: who is asked, in which order, and when they are written."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang.srt.arg_groups import overrides
from sglang.srt.arg_groups.overrides import (
    MODEL_OVERRIDES,
    collect_model_override_declarations,
    declared_overrides,
    register_model_override,
    register_model_override_predicate,
)
from sglang.srt.configs.hf_config import read_hf_config
from sglang.srt.server_args import SealedError, ServerArgs, with_model_path
from tests.unit.srt.model_loader.tiny_gguf import TinyGguf

ARCHITECTURE = "LlamaForCausalLM"
CONFIG = {
    "architectures": [ARCHITECTURE],
    "model_type": "llama",
    "vocab_size": 10,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}


@pytest.fixture(autouse=True)
def nothing_declared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(overrides, "_MODEL_OVERRIDE_FNS", {})
    monkeypatch.setattr(overrides, "_PREDICATE_OVERRIDE_FNS", [])
    MODEL_OVERRIDES.clear()
    yield
    MODEL_OVERRIDES.clear()


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return str(tmp_path)


def test_decorators_return_the_provider() -> None:
    def provider(server_args: Any, hf_config: Any) -> dict[str, Any]:
        return {}

    assert register_model_override(ARCHITECTURE)(provider) is provider
    assert register_model_override_predicate(str.isalpha)(provider) is provider


def test_order_and_sources() -> None:
    @register_model_override_predicate(lambda name: name.startswith("Llama"))
    def by_family(server_args: Any, hf_config: Any) -> dict[str, Any]:
        return {"page_size": 4}

    @register_model_override_predicate(lambda name: name.startswith("Qwen"))
    def another_family(server_args: Any, hf_config: Any) -> dict[str, Any]:
        raise AssertionError("asked")

    @register_model_override(ARCHITECTURE)
    def first(server_args: Any, hf_config: Any) -> dict[str, Any]:
        return {"page_size": 2}

    @register_model_override(ARCHITECTURE)
    def second(server_args: Any, hf_config: Any) -> dict[str, Any]:
        return {}

    MODEL_OVERRIDES[ARCHITECTURE] = {"page_size": 1}
    found = collect_model_override_declarations(ARCHITECTURE, None, None)
    assert [(source.rpartition(".")[2], values) for source, values in found] == [
        ("MODEL_OVERRIDES['LlamaForCausalLM']", {"page_size": 1}),
        ("first", {"page_size": 2}),
        ("second", {}),
        ("by_family", {"page_size": 4}),
    ]
    assert found[1][0] == first.__qualname__
    assert [name for name, _ in declared_overrides()] == [
        ARCHITECTURE, ARCHITECTURE, ARCHITECTURE,
        "where test_order_and_sources.<locals>.<lambda>",
        "where test_order_and_sources.<locals>.<lambda>",
    ]  # fmt: skip


def test_the_last_writer_wins_and_every_write_is_logged(
    model: str, caplog: pytest.LogCaptureFixture
) -> None:
    MODEL_OVERRIDES[ARCHITECTURE] = {"stream_interval": 2, "schedule_policy": "lpm"}

    @register_model_override(ARCHITECTURE)
    def mine(server_args: Any, hf_config: Any) -> dict[str, Any]:
        return {"stream_interval": hf_config.num_attention_heads + server_args.page_size}

    args = ServerArgs(model_path=model)
    with caplog.at_level(logging.INFO):
        with_model_path(args, model)
    assert (args.stream_interval, args.schedule_policy) == (3, "lpm")
    assert "MODEL_OVERRIDES['LlamaForCausalLM']: stream_interval = 2 (was 1)" in caplog.text
    assert f"{mine.__qualname__}: stream_interval = 3 (was 2)" in caplog.text


def test_another_architecture_is_left_alone(model: str) -> None:
    MODEL_OVERRIDES["OtherForCausalLM"] = {"stream_interval": 2}
    assert ServerArgs(model_path=model).stream_interval == 1


def test_a_provider_writes_nothing_itself(model: str) -> None:
    @register_model_override(ARCHITECTURE)
    def writes_options(server_args: Any, hf_config: Any) -> dict[str, Any]:
        server_args.page_size = 16
        return {}

    with pytest.raises(SealedError, match="page_size"):
        ServerArgs(model_path=model)
    overrides._MODEL_OVERRIDE_FNS.clear()

    @register_model_override(ARCHITECTURE)
    def writes_config(server_args: Any, hf_config: Any) -> dict[str, Any]:
        hf_config.vocab_size = 5
        return {}

    with pytest.raises(AttributeError, match="vocab_size"):
        ServerArgs(model_path=model)


def test_more_about_the_model(model: str) -> None:
    @register_model_override(ARCHITECTURE)
    def provider(server_args: Any, hf_config: Any) -> dict[str, Any]:
        return {"max_prefill_tokens": server_args.get_model_config().context_len}

    assert ServerArgs(model_path=model).max_prefill_tokens == 64


@pytest.mark.parametrize("value", [None, ["page_size"], "x"])
def test_something_that_is_no_dict_names_its_provider(model: str, value: Any) -> None:
    @register_model_override(ARCHITECTURE)
    def provider(server_args: Any, hf_config: Any) -> Any:
        return value

    with pytest.raises(TypeError, match=rf"provider must return a dict.*{type(value).__name__}"):
        ServerArgs(model_path=model)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"page_sise": 1}, "unknown field 'page_sise'; did you mean 'page_size'?"),
        ({"xyzzy": 1}, "unknown field 'xyzzy'; the fields are those of ServerArgs"),
        ({"page_size": 0}, "--page-size must be >= 1, got 0"),
        ({"model_path": "x"}, "model_path cannot be overridden"),
    ],
)
def test_a_wrong_field_or_value_names_who_declared_it(
    model: str, values: dict[str, Any], text: str
) -> None:
    MODEL_OVERRIDES[ARCHITECTURE] = values
    with pytest.raises(ValueError) as caught:
        ServerArgs(model_path=model)
    assert str(caught.value) == f"model override MODEL_OVERRIDES['LlamaForCausalLM']: {text}"


@pytest.mark.parametrize("name", ["dummy", "none", "org/not-here-yet"])
def test_a_model_that_is_not_on_disk_is_not_looked_at(name: str) -> None:
    MODEL_OVERRIDES[ARCHITECTURE] = {"stream_interval": 2}
    assert ServerArgs(model_path=name).stream_interval == 1


def test_a_model_that_was_downloaded_is_looked_at_then(model: str) -> None:
    MODEL_OVERRIDES[ARCHITECTURE] = {"stream_interval": 2}
    args = ServerArgs(model_path="org/name")
    args.check_server_args()
    found = with_model_path(args, model)
    assert (found.stream_interval, found.sealed, args.stream_interval) == (2, True, 1)


def test_a_model_is_looked_at_once(model: str) -> None:
    asked: list[str] = []

    @register_model_override(ARCHITECTURE)
    def provider(server_args: Any, hf_config: Any) -> dict[str, Any]:
        asked.append(hf_config.model_type)
        return {}

    args = ServerArgs(model_path=model)
    args.check_server_args()
    with_model_path(args, model)
    assert asked == ["llama"]


def test_hf_config_of_a_gguf_file_has_the_same_keys(tmp_path: Path) -> None:
    config = read_hf_config(TinyGguf().write(tmp_path / "tiny.gguf"))
    assert config.architectures == [ARCHITECTURE]
    assert set(CONFIG) <= set(config.to_dict())
    assert getattr(config, "num_experts", None) is None
