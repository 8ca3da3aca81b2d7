"""Options that change nothing without a switch say so."""

from pathlib import Path
from typing import Any

import pytest

from sglang.srt.arg_groups.declaration import Option, options_of, without_switch
from sglang.srt.server_args import ServerArgs, prepare_server_args, with_model_path

OPTIONS = options_of(ServerArgs)
WAITING = [option for option in OPTIONS if option.needs is not None]
PAIRS = [
    (["--otlp-traces-endpoint", "far:4317"], "--enable-trace"),
    (["--log-requests-level", "0"], "--log-requests"),
    (["--bucket-time-to-first-token", "0.1"], "--enable-metrics"),
    (["--hicache-write-policy", "write_back"], "--enable-hierarchical-cache"),
    (["--max-loras-per-batch", "2"], "--enable-lora"),
    (["--default-priority-value", "3"], "--enable-priority-scheduling"),
    (["--retraction-policy", "priority"], "--enable-priority-scheduling"),
]


def warned(argv: list[str]) -> list[str]:
    return without_switch(prepare_server_args(["--model-path", "dummy", *argv]), OPTIONS)


@pytest.mark.parametrize(("argv", "switch"), PAIRS, ids=lambda value: value[0])
def test_both_are_named(argv: list[str], switch: str) -> None:
    assert warned(argv) == [f"{argv[0]} changes nothing without {switch}."]


def test_nothing_is_said_with_the_switch_or_by_default() -> None:
    assert warned([]) == []
    assert warned(["--otlp-traces-endpoint", "far:4317", "--enable-trace"]) == []
    assert warned(["--retraction-policy", "priority", "--schedule-policy", "priority"]) == []


@pytest.mark.parametrize("option", WAITING, ids=lambda option: option.name)
def test_switches_are_options_that_are_off_by_default(option: Option) -> None:
    (switch,) = [other for other in OPTIONS if other.name == option.needs]
    assert (switch.kind, switch.default) == (bool, False)


def test_the_launch_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given: dict[str, Any] = {"otlp_traces_endpoint": "far:4317"}
    args = ServerArgs(model_path="dummy", **given)
    args.check_server_args()
    with caplog.at_level("WARNING"):
        with_model_path(args, str(tmp_path))
    assert caplog.messages == ["--otlp-traces-endpoint changes nothing without --enable-trace."]
