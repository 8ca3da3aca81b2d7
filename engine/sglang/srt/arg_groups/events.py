"""Where the events of the prefix cache are published."""

import dataclasses
import json
import re
from dataclasses import dataclass
from typing import Annotated as A
from typing import Any

from sglang.srt.arg_groups.declaration import Group

GROUP = Group("events")
FLAG = "--kv-events-config"
NULL_PUBLISHER = "null"
FORMATS = ("array", "map")
MOST = 10_000_000
TCP = re.compile(r"tcp://(?P<host>\[[^\]]+\]|[^:/\[\]]+):(?P<port>\d{1,5})")


@dataclass(frozen=True)
class KvEventsConfig:
    """The keys of `--kv-events-config`."""

    publisher: str = NULL_PUBLISHER  # `null` or `zmq`, or one that a plugin registered
    endpoint: str = "tcp://*:5557"  # of rank 0; rank r uses port + r
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000  # batches that can be replayed
    hwm: int = 100_000  # messages that wait for one subscriber of the socket
    max_queue_size: int = 100_000  # batches that wait for the publisher
    topic: str = ""
    bind: bool | None = None  # None: unless the endpoint names a host
    format: str = "array"  # of events: `array` or `map`

    @property
    def is_on(self) -> bool:
        return self.publisher != NULL_PUBLISHER

    @property
    def binds(self) -> bool:
        """A wildcard or a path is a place to listen, a host one to connect to."""
        if self.bind is not None:
            return self.bind
        host, _ = host_and_port(self.endpoint)
        return host is None or host in ("*", "[::]")

    def of_rank(self, rank: int) -> "KvEventsConfig":
        """The endpoints of one data-parallel rank."""
        replay = self.replay_endpoint
        return dataclasses.replace(
            self,
            endpoint=shifted(self.endpoint, rank),
            replay_endpoint=None if replay is None else shifted(replay, rank),
        )


@dataclass
class EventArgs:
    """Events of the prefix cache."""

    kv_events_config: A[
        str | None,
        GROUP,
        "JSON object: publisher (null, zmq, or a plugin's), endpoint, replay_endpoint, "
        "buffer_steps, hwm, max_queue_size, topic, bind, format (array, map); see kv-events.md.",
    ] = None

    @property
    def kv_events(self) -> KvEventsConfig:
        return parse_kv_events_config(self.kv_events_config)


def check_events(args: EventArgs, *, disable_radix_cache: bool) -> None:
    """ValueError that names the key where the configuration of events is wrong."""
    if args.kv_events.is_on and disable_radix_cache:
        raise ValueError(
            f"{FLAG} publishes what the prefix cache holds; leave --disable-radix-cache out, or "
            'set publisher to "null"'
        )


def parse_kv_events_config(text: str | None) -> KvEventsConfig:
    """ValueError says which key is wrong, and what is allowed."""
    if text is None:
        return KvEventsConfig()
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{FLAG} must be a JSON object: {error}; got {text[:80]!r}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{FLAG} must be a JSON object, got {text[:80]!r}")
    known = [field.name for field in dataclasses.fields(KvEventsConfig)]
    for key in values:
        if key not in known:
            raise ValueError(f"{FLAG}: unknown key {key!r}; allowed: {', '.join(known)}")
    if values.get("publisher", "") is None:
        values["publisher"] = NULL_PUBLISHER
    for key, value in values.items():
        _check_key(key, value)
    config = KvEventsConfig(**values)
    if config.replay_endpoint == config.endpoint:
        raise ValueError(f"{FLAG}: replay_endpoint must differ from endpoint, {config.endpoint!r}")
    return config


def _check_key(key: str, value: Any) -> None:
    match key:
        case "buffer_steps" | "max_queue_size" | "hwm":
            least = 0 if key == "hwm" else 1
            is_whole = isinstance(value, int) and not isinstance(value, bool)
            good, allowed = is_whole and least <= value <= MOST, f"a whole number, {least} … {MOST}"
        case "bind":
            good, allowed = value is None or isinstance(value, bool), "true, false or null"
        case "format":
            good, allowed = value in FORMATS, f"one of {', '.join(FORMATS)}"
        case "publisher":
            good, allowed = isinstance(value, str) and bool(value.strip()), "a publisher's name"
        case "topic":
            good, allowed = isinstance(value, str), "text"
        case _:
            is_absent = value is None and key == "replay_endpoint"
            good = is_absent or (isinstance(value, str) and _is_endpoint(value))
            allowed = "tcp://HOST:PORT with a port of 1 … 65535, or ipc://PATH"
    if not good:
        raise ValueError(f"{FLAG}: {key} must be {allowed}; got {value!r}")


def _is_endpoint(text: str) -> bool:
    if text.startswith("ipc://"):
        return len(text) > len("ipc://")
    found = TCP.fullmatch(text)
    return found is not None and 1 <= int(found["port"]) <= 65535


def host_and_port(endpoint: str) -> tuple[str | None, int | None]:
    """Both None where the endpoint is a path."""
    found = TCP.fullmatch(endpoint)
    return (None, None) if found is None else (found["host"], int(found["port"]))


def shifted(endpoint: str, rank: int) -> str:
    """The endpoint of a rank: its port plus the rank, or its path with the rank at the end."""
    found = TCP.fullmatch(endpoint)
    if found is None:
        return f"{endpoint}_dp{rank}" if rank else endpoint
    return f"tcp://{found['host']}:{int(found['port']) + rank}"
