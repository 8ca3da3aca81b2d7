"""Vectors of a real engine over HTTP."""

import math
from collections.abc import Iterator

import pytest
from openai import OpenAI

from tests.e2e import processes
from tests.e2e.conftest import client_of
from tests.e2e.processes import Server


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("embedder")
    with processes.front_door(folder, "--is-embedding", "--dtype", "float32") as server:
        yield server


def test_an_openai_client_gets_vectors_of_length_one(embedder: Server) -> None:
    client: OpenAI = client_of(embedder)
    reply = client.embeddings.create(model="demo", input=["The sea is blue", "A stone"])
    first, second = (item.embedding for item in reply.data)
    for vector in (first, second):
        assert math.sqrt(sum(value * value for value in vector)) == pytest.approx(1, abs=1e-3)
    assert first != second and len(first) == len(second)
    assert reply.usage.prompt_tokens == reply.usage.total_tokens > 0
    as_floats = client.embeddings.create(
        model="demo", input="The sea is blue", encoding_format="float"
    )
    assert as_floats.data[0].embedding == pytest.approx(first, abs=1e-4)


def test_the_native_form_has_the_same_vector(embedder: Server) -> None:
    _, openai, _ = processes.call(f"{embedder.url}/v1/embeddings", {"input": [5, 6, 7]})
    status, native, _ = processes.call(f"{embedder.url}/encode", {"input_ids": [5, 6, 7]})
    assert status == 200
    assert native["embedding"] == pytest.approx(openai["data"][0]["embedding"], abs=1e-4)
    assert native["meta_info"]["prompt_tokens"] == 3


def test_a_generation_model_says_what_is_missing(server: Server) -> None:
    status, error, _ = processes.call(f"{server.url}/v1/embeddings", {"input": "x"})
    assert status == 400 and "--is-embedding" in error["error"]["message"]


def test_a_worker_that_embeds_is_healthy_and_generates_nothing(embedder: Server) -> None:
    for path in ("/health", "/readiness", "/health_generate", "/v1/models"):
        assert processes.call(f"{embedder.url}{path}")[0] == 200, path
    asked = {
        "/generate": {"text": "x"},
        "/v1/completions": {"prompt": "x"},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    }
    for path, body in asked.items():
        status, error, _ = processes.call(f"{embedder.url}{path}", body)
        assert status == 400, (path, error)
        assert "started with --is-embedding and generates no text" in error["error"]["message"]
