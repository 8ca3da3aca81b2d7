"""Servers that the end-to-end tests share, started once a session."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from openai import OpenAI

from tests.e2e import processes
from tests.e2e.processes import Server


@dataclass
class Pool:
    """Two workers behind a gateway, and a client of it."""

    workers: list[Server]
    gateway: Server
    client: OpenAI
    model: str

    @property
    def url(self) -> str:
        return self.gateway.url


def client_of(server: Server) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    folder = tmp_path_factory.mktemp("pool")
    with (
        processes.engine(folder, "--dtype", "float32") as first,
        processes.engine(folder, "--dtype", "float32") as second,
        processes.gateway(folder, [first, second]) as gateway,
    ):
        client = client_of(gateway)
        yield Pool([first, second], gateway, client, client.models.list().data[0].id)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`python -m sglang.launch_server --model-path demo`."""
    events = {
        "publisher": "zmq",
        "endpoint": f"tcp://*:{processes.free_port()}",
        "replay_endpoint": f"tcp://*:{processes.free_port()}",
    }
    flags = ["--dtype", "float32", "--kv-events-config", json.dumps(events)]
    with processes.front_door(tmp_path_factory.mktemp("server"), *flags) as running:
        yield running


@pytest.fixture(scope="session", params=["xgrammar", "llguidance"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A front door with each of the built-in grammar backends."""
    with processes.front_door(
        tmp_path_factory.mktemp("log"), "--grammar-backend", request.param, "--dtype", "float32"
    ) as server:
        yield server


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path
