"""Where we do better than the guide says, on purpose, and what holds instead."""

import pytest

from sglang.srt.extension_points import ATTENTION_BACKENDS
from sglang.srt.layers.attention.attention_registry import register_attention_backend
from sglang.srt.server_args import prepare_server_args

DUMMY = ["--model-path", "dummy"]


@pytest.fixture
def registered() -> str:
    name = "departing"
    register_attention_backend(name)(lambda runner: None)
    yield name
    del ATTENTION_BACKENDS[name]


def test_s000_91_a_registered_attention_backend_needs_no_extended_choices(registered: str) -> None:
    args = prepare_server_args([*DUMMY, "--attention-backend", registered])
    assert args.attention_backend == registered


def test_s000_91_a_name_that_nobody_registered_is_refused(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as ended:
        prepare_server_args([*DUMMY, "--attention-backend", "departing"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "--attention-backend" in said
    assert "'departing'" in said
    assert "torch_native" in said
