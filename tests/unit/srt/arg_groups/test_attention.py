"""Attention backends are chosen per phase, from all names that are registered or announced."""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sglang.srt.arg_groups.name_list import NameList
from sglang.srt.layers.attention import attention_registry
from sglang.srt.layers.attention.attention_registry import (
    ATTENTION_BACKENDS,
    attention_backend_for,
    register_attention_backend,
)
from sglang.srt.layers.attention.hybrid_backend import HybridAttnBackend
from sglang.srt.managers.tp_worker import _runner_config
from sglang.srt.model_executor.model_runner import RunnerConfig
from sglang.srt.server_args import (
    ATTENTION_BACKEND_CHOICES,
    add_attention_backend_choices,
    prepare_server_args,
)

FLAGS = ("--attention-backend", "--prefill-attention-backend", "--decode-attention-backend")
DUMMY = ["--model-path", "dummy"]


@pytest.fixture
def registered() -> Iterator[str]:
    register_attention_backend("of_a_test")(lambda runner: SimpleNamespace(of=runner))
    yield "of_a_test"
    del ATTENTION_BACKENDS["of_a_test"]


@pytest.fixture
def announced() -> Iterator[str]:
    add_attention_backend_choices(["announced"])
    yield "announced"
    ATTENTION_BACKEND_CHOICES.remove("announced")


@pytest.mark.parametrize("flag", FLAGS)
def test_every_flag_takes_registered_and_announced_names(
    flag: str, registered: str, announced: str
) -> None:
    for name in (registered, announced, "torch_native"):
        args = prepare_server_args([*DUMMY, flag, name])
        assert getattr(args, flag.removeprefix("--").replace("-", "_")) == name


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("name", ["triton", "flashinfer", "nobody"])
def test_every_flag_refuses_what_cannot_run(
    flag: str, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(SystemExit):
        prepare_server_args([*DUMMY, flag, name])
    text = capsys.readouterr().err
    assert flag in text and name in text and "torch_native" in text


def test_an_announced_name_that_nobody_registers_is_refused_when_it_is_needed(
    announced: str,
) -> None:
    config = replace(RunnerConfig(), decode_attention_backend=announced)
    runner: Any = SimpleNamespace(config=config, kv_dims=SimpleNamespace(cell_bytes=64))
    with pytest.raises(ValueError, match="Invalid attention backend: announced"):
        attention_backend_for(runner)


def made(monkeypatch: pytest.MonkeyPatch, *argv: str) -> Any:
    monkeypatch.setattr(attention_registry, "create_attention_backend", lambda name, _: name)
    config = _runner_config(prepare_server_args([*DUMMY, *argv]))
    return attention_backend_for(SimpleNamespace(config=config))


def test_one_backend_serves_both_phases_unless_they_differ(
    monkeypatch: pytest.MonkeyPatch, registered: str
) -> None:
    assert made(monkeypatch) == "torch_native"
    assert made(monkeypatch, FLAGS[1], registered, FLAGS[2], registered) == registered
    for argv, phases in (
        ([FLAGS[1], registered], (registered, "torch_native")),
        ([FLAGS[2], registered], ("torch_native", registered)),
    ):
        backend = made(monkeypatch, *argv)
        assert isinstance(backend, HybridAttnBackend)
        assert (backend.prefill_backend, backend.decode_backend) == phases


def test_parts_of_triton_s_decode_reach_the_runner() -> None:
    args = prepare_server_args([*DUMMY, "--triton-attention-num-kv-splits", "3"])
    assert _runner_config(args).triton_attention_num_kv_splits == 3
    assert _runner_config(prepare_server_args(DUMMY)).triton_attention_num_kv_splits == 8


def test_the_list_of_choices_is_one() -> None:
    registry = {"b": 1, "a": 2}
    names = NameList(registry)
    names.append("later")
    names += ["a", "other"]
    assert names == ["a", "b", "later", "other"]
    assert "later" in names and "c" not in names and names[0] == "a" and len(names) == 4
    registry["later"] = 3
    assert names == ["a", "b", "later", "other"]
    names.remove("other")
    assert list(names) == ["a", "b", "later"]
    with pytest.raises(TypeError, match="changed by registering"):
        names.remove("a")
    with pytest.raises(TypeError, match="changed by registering"):
        names[0] = "z"
