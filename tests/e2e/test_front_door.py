"""One worker with its own front door, and the literal commands of the fork experiment."""

import json
import subprocess

from tests.e2e import processes
from tests.e2e.conftest import Pool
from tests.e2e.processes import Server, call

P = "Here are two tips for staying healthy: 1. Balanced Diet. 2. Regular Exercise."


def shell(command: str) -> str:
    return subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=True, timeout=120
    ).stdout


def test_a_commit_and_two_branches_by_curl(server: Server) -> None:
    where = f"P='{P}'; curl -s {server.url}/generate -d"
    commit = '{\\"text\\": \\"$P\\", \\"sampling_params\\": {\\"max_new_tokens\\": 0}}'
    shell(f'{where} "{commit}" > /dev/null')
    for number in (1, 2):
        reply = json.loads(
            shell(
                f'{where} "{{\\"text\\": \\"$P Expand tip {number}:\\", '
                f'\\"sampling_params\\": {{\\"max_new_tokens\\": 32}}}}"'
            )
        )
        assert reply["meta_info"]["cached_tokens"] > 0
        assert reply["meta_info"]["completion_tokens"] > 0


def test_server_info_shows_live_cache_counters(server: Server) -> None:
    def counters() -> dict[str, float]:
        lines = shell(f"curl -s {server.url}/server_info | python3 -m json.tool | grep -i cache")
        pairs = (line.strip().rstrip(",").split(": ", 1) for line in lines.splitlines())
        return {
            name.strip('"'): float(value)
            for name, value in pairs
            if value.replace(".", "", 1).replace("e-", "").isdigit()
        }

    before = counters()
    for _ in range(2):
        call(f"{server.url}/generate", {"text": P, "sampling_params": {"max_new_tokens": 1}})
    after = counters()
    assert after["cached_tokens_total"] > before["cached_tokens_total"]
    assert 0 < after["cache_hit_rate"] <= 1


def test_the_front_door_answers_as_the_gateway_does(server: Server, pool: Pool, tmp_path) -> None:
    """`--grpc-mode` behind `smg` and the server's own front door give the same answers."""
    asks = [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0,
                                  "max_tokens": 8, "logprobs": True}),
        ("/v1/completions", {"prompt": "Hi", "temperature": 0, "max_tokens": 8}),
        ("/generate", {"text": "Hi", "sampling_params": {"temperature": 0, "max_new_tokens": 8}}),
        ("/v1/completions", {"prompt": "Hi", "temperature": -1}),
        ("/tokenize", {"prompt": "Hi there"}),
    ]  # fmt: skip
    volatile = {"id", "created", "e2e_latency", "cached_tokens"}

    def stable(value):
        if isinstance(value, float):
            return round(value, 3)  # a cached prefix rounds differently from a computed one
        if isinstance(value, dict):
            return {k: stable(v) for k, v in value.items() if k not in volatile}
        return [stable(v) for v in value] if isinstance(value, list) else value

    with processes.gateway(tmp_path, pool.workers[:1]) as gateway:
        for path, body in asks:
            ours, theirs = (call(f"{s.url}{path}", body)[:2] for s in (server, gateway))
            assert stable(list(ours)) == stable(list(theirs)), path


def test_metrics_join_the_gateway_and_the_engine(server: Server) -> None:
    status, text, _ = call(f"{server.url}/metrics")
    assert status == 200
    assert "smg_http_requests_total" in text
    assert "sglang:prompt_tokens_total" in text


def test_sigterm_ends_it_and_leaves_nothing(tmp_path) -> None:
    import psutil

    with processes.front_door(tmp_path) as running:
        family = psutil.Process(running.process.pid).children(recursive=True)
        assert family
        assert running.end() == 0
        _, alive = psutil.wait_procs(family, timeout=30)
        assert alive == []
