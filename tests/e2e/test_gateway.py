"""`smg` in front of workers: its policies, its information routes and its command line."""

import subprocess
import sys

import pytest

from sglang_router import option_schema
from tests.e2e import processes
from tests.e2e.conftest import Pool
from tests.e2e.processes import SMG, call

POLICIES = next(o["choices"] for o in option_schema() if o["name"] == "policy")
ASK = {"text": "hello", "sampling_params": {"max_new_tokens": 2, "temperature": 0}}


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_serves(pool: Pool, tmp_path, policy: str) -> None:
    with processes.gateway(tmp_path, pool.workers, "--policy", policy) as gateway:
        for _ in range(6):
            assert call(f"{gateway.url}/generate", ASK)[0] == 200
        text = call(f"{gateway.url}/metrics")[1]
        assert f'policy="{policy}"' in text


def test_round_robin_alternates_and_cache_aware_returns(pool: Pool, tmp_path) -> None:
    def cached(gateway, prompt: str) -> list[int]:
        body = {"text": prompt, "sampling_params": {"max_new_tokens": 1}}
        return [
            call(f"{gateway.url}/generate", body)[1]["meta_info"]["cached_tokens"] for _ in range(4)
        ]

    with processes.gateway(tmp_path, pool.workers, "--policy", "round_robin") as gateway:
        turns = cached(gateway, "Each worker sees this sentence for the first time once. " * 4)
        assert turns[:2] == [0, 0] and min(turns[2:]) > 0
    with processes.gateway(tmp_path, pool.workers, "--policy", "cache_aware") as gateway:
        turns = cached(gateway, "This other sentence stays with the worker that saw it first. " * 4)
        assert turns[0] == 0 and min(turns[1:]) > 0


def test_information_routes(pool: Pool) -> None:
    status, workers, _ = call(f"{pool.url}/workers")
    assert status == 200
    assert workers["total"] == 2
    assert {w["url"] for w in workers["workers"]} == {w.grpc_url for w in pool.workers}
    assert all(w["is_healthy"] and w["connection_mode"] == "gRPC" for w in workers["workers"])
    for path in ("/get_model_info", "/model_info"):
        info = call(f"{pool.url}{path}")[1]
        assert info["is_generation"] is True
        assert info["model_type"] == "llama"
    for path in ("/get_server_info", "/server_info"):
        info = call(f"{pool.url}{path}")[1]
        assert info["status"] == "ready"
        assert info["max_total_num_tokens"] > 0
    for path in ("/health", "/liveness", "/readiness", "/health_generate"):
        assert processes.get_status(f"{pool.url}{path}") == 200, path


def test_metrics_of_all_engines_are_labelled(pool: Pool) -> None:
    text = call(f"{pool.url}/engine_metrics")[1]
    for worker in pool.workers:
        assert f'worker_addr="{worker.grpc_url}"' in text
    assert "sglang:num_running_reqs" in text


def test_python_launcher_is_the_same_gateway(pool: Pool, tmp_path) -> None:
    port = processes.free_port()
    server = processes.start(
        [sys.executable, "-m", "sglang_router.launch_router", "--host", "127.0.0.1",
         "--port", str(port), "--worker-urls", *[w.grpc_url for w in pool.workers],
         "--policy", "round_robin"],
        port, tmp_path / "router.log",
    )  # fmt: skip
    try:
        server.wait("/readiness")
        assert call(f"{server.url}/generate", ASK)[0] == 200
    finally:
        assert server.end() == 0


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_unknown_flag_names_the_nearest(pool: Pool) -> None:
    for command in ([str(SMG)], [sys.executable, "-m", "sglang_router.launch_router"]):
        done = run(*command, "--polcy", "random")
        assert done.returncode == 2
        assert "--policy" in done.stderr


def test_port_in_use_is_one_sentence(pool: Pool) -> None:
    done = run(str(SMG), "launch", "--host", "127.0.0.1", "--port", str(pool.gateway.port),
               "--worker-urls", pool.workers[0].grpc_url)  # fmt: skip
    assert done.returncode != 0
    assert str(pool.gateway.port) in done.stderr and "in use" in done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.strip().splitlines()) <= 3


def test_engine_refuses_to_start_in_one_sentence(pool: Pool) -> None:
    launch = [sys.executable, "-m", "sglang.launch_server"]
    cases = [
        (
            ["--model-path", "no-such-folder/model.gguf", "--port", str(processes.free_port())],
            "no-such-folder/model.gguf",
        ),
        (
            ["--model-path", "demo", "--port", str(pool.gateway.port), "--host", "127.0.0.1"],
            "in use",
        ),
        (["--model-path", "demo", "--page-sze", "4"], "--page-size"),
        (["--model-path", "demo", "--page-size", "0"], "page_size"),
    ]
    for flags, expected in cases:
        done = run(*launch, *flags)
        assert done.returncode != 0, flags
        assert expected.replace("_", "-") in done.stderr.replace("_", "-"), done.stderr
        assert "Traceback" not in done.stderr
