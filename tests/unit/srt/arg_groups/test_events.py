"""Every mistake in `--kv-events-config` names its key."""

import json

import pytest

from sglang.srt.arg_groups.events import KvEventsConfig, parse_kv_events_config
from sglang.srt.server_args import ServerArgs


def config(**keys: object) -> KvEventsConfig:
    return parse_kv_events_config(json.dumps(keys))


def test_without_the_option_and_by_default_nothing_is_published() -> None:
    assert not parse_kv_events_config(None).is_on
    assert not config().is_on
    assert not config(publisher=None).is_on
    assert config(publisher="zmq").is_on


def test_every_key_is_taken() -> None:
    keys = {
        "publisher": "zmq", "endpoint": "tcp://*:6000", "replay_endpoint": "ipc:///tmp/replay",
        "buffer_steps": 5, "hwm": 0, "max_queue_size": 1, "topic": "kv", "bind": False,
        "format": "map",
    }  # fmt: skip
    assert vars(config(**keys)) == keys


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("buffer_steps", 0, "a whole number, 1"),
        ("buffer_steps", True, "a whole number"),
        ("max_queue_size", "many", "a whole number"),
        ("hwm", -1, "a whole number, 0"),
        ("bind", "yes", "true, false or null"),
        ("format", "default", "one of array, map"),
        ("publisher", " ", "a publisher's name"),
        ("topic", 7, "text"),
        ("endpoint", "*:5557", "tcp://HOST:PORT"),
        ("endpoint", "tcp://*:70000", "tcp://HOST:PORT"),
        ("endpoint", "ipc://", "ipc://PATH"),
        ("endpoint", None, "tcp://HOST:PORT"),
        ("replay_endpoint", "udp://*:1", "tcp://HOST:PORT"),
    ],
)
def test_wrong_value_names_key_allowed_and_given(key: str, value: object, allowed: str) -> None:
    with pytest.raises(ValueError) as caught:
        config(**{key: value})
    text = str(caught.value)
    assert text.startswith(f"--kv-events-config: {key} must be ")
    assert allowed in text and text.endswith(f"got {value!r}")


@pytest.mark.parametrize("text", ["{", "[1]", "5", '"zmq"', "[" * 100_000])
def test_anything_but_an_object_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--kv-events-config must be a JSON object"):
        parse_kv_events_config(text)


def test_unknown_key_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown key 'port'; allowed: publisher, endpoint"):
        config(port=5557)


def test_both_sockets_cannot_share_an_endpoint() -> None:
    with pytest.raises(ValueError, match="replay_endpoint must differ from endpoint"):
        config(endpoint="tcp://*:1", replay_endpoint="tcp://*:1")


@pytest.mark.parametrize(
    ("endpoint", "bind", "binds"),
    [
        ("tcp://*:5557", None, True),
        ("tcp://[::]:5557", None, True),
        ("ipc:///tmp/kv", None, True),
        ("tcp://10.0.0.1:5557", None, False),
        ("tcp://localhost:5557", None, False),
        ("tcp://10.0.0.1:5557", True, True),
        ("tcp://*:5557", False, False),
    ],
)
def test_a_wildcard_or_a_path_binds_unless_told(
    endpoint: str, bind: bool | None, binds: bool
) -> None:
    assert config(endpoint=endpoint, bind=bind).binds is binds


def test_each_rank_has_ports_of_its_own() -> None:
    made = config(endpoint="tcp://[::1]:5557", replay_endpoint="ipc:///tmp/r").of_rank(2)
    assert (made.endpoint, made.replay_endpoint) == ("tcp://[::1]:5559", "ipc:///tmp/r_dp2")
    assert config(replay_endpoint=None).of_rank(0) == config()


def test_events_need_a_prefix_cache() -> None:
    text = json.dumps({"publisher": "zmq"})
    args = ServerArgs(model_path="dummy", kv_events_config=text, disable_radix_cache=True)
    with pytest.raises(ValueError, match="leave --disable-radix-cache out"):
        args.check_server_args()
    ServerArgs(model_path="dummy", kv_events_config=text).check_server_args()


def test_the_server_checks_the_object_when_it_checks_its_options() -> None:
    args = ServerArgs(model_path="dummy", kv_events_config='{"hwm": -1}')
    with pytest.raises(ValueError, match="--kv-events-config: hwm must be"):
        args.check_server_args()
