"""Mistakes that are found before anything starts."""

import json
import socket
from typing import Any

import pytest

from sglang.srt.entrypoints.preflight import (
    LaunchError,
    check_packages,
    check_ports,
    check_preferred_sampling,
)
from sglang.srt.server_args import ServerArgs


def preferring(**values: Any) -> ServerArgs:
    return ServerArgs(model_path="m", preferred_sampling_params=json.dumps(values))


def test_good_defaults_pass() -> None:
    check_preferred_sampling(ServerArgs(model_path="m"))
    check_preferred_sampling(preferring(temperature=0, top_k=-1, top_p=0.5, min_p=0.1))


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"temprature": 5, "temperature": 1}, ("'temprature'", "did you mean 'temperature'?")),
        ({"xyzzy": 1}, ("'xyzzy'", "allowed: temperature, top_p")),
        ({"stop": ["x"]}, ("'stop'", "allowed: temperature")),  # no gateway would fill it in
        ({"temperature": -3}, ("temperature", ">= 0", "-3")),
        ({"top_p": 1.5}, ("top_p", "(0, 1]", "1.5")),
        ({"top_k": 0}, ("top_k", "0")),
        ({"top_k": 1.5}, ("top_k", "int")),
        ({"temperature": "hot"}, ("temperature", "float")),
    ],
)
def test_wrong_defaults_are_named(values: dict[str, Any], parts: tuple[str, ...]) -> None:
    with pytest.raises(LaunchError) as caught:
        check_preferred_sampling(preferring(**values))
    for part in ("--preferred-sampling-params", *parts):
        assert part in str(caught.value)


def refused(host: str, port: int) -> str:
    with pytest.raises(LaunchError) as caught:
        check_ports(ServerArgs(model_path="m", host=host, port=port))
    return str(caught.value)


def test_a_taken_port_is_to_be_another_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        assert refused("127.0.0.1", port).endswith("choose another one")


@pytest.mark.parametrize("host", ["203.0.113.7", "x" * 300])  # another machine's, nobody's
def test_an_address_of_another_machine_is_no_matter_of_the_port(host: str) -> None:
    text = refused(host, 30000)
    assert "--host must be an address of this machine" in text
    assert "choose another" not in text


def test_missing_packages_of_traces_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang.srt.observability.tracing.PACKAGES", ("missing_package.sdk",))
    check_packages(ServerArgs(model_path="m"))
    with pytest.raises(LaunchError, match=r"pip install 'sglang\[trace\]'"):
        check_packages(ServerArgs(model_path="m", enable_trace=True))
