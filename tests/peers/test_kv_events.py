"""A published gateway routes by our KV events."""

from pathlib import Path

import grpc

from tests.e2e import processes
from tests.e2e.processes import call, until
from tests.e2e.test_kv_events import PAGE, generate, prompt
from tests.peers.peers import published_gateway

APPLIED = "snapshot applied"  # once per worker, in the gateway's log


def test_snapshot_leads_to_the_worker_that_has_the_prefix(tmp_path: Path) -> None:
    flags = ["--page-size", str(PAGE), "--max-total-tokens", "2000"]
    ids = prompt(1)
    with (
        processes.engine(tmp_path, *flags, name="first") as first,
        processes.engine(tmp_path, *flags, name="second") as second,
    ):
        with grpc.insecure_channel(f"127.0.0.1:{second.port}") as channel:
            generate(channel, "before-the-gateway", ids)  # so that only the snapshot can tell
        with published_gateway(
            "smg 1.13.0", tmp_path, first, second, policy="cache_aware"
        ) as gateway:
            until(lambda: gateway.log_text().count(APPLIED) == 2)
            _, models, _ = call(f"{gateway.url}/v1/models")
            body = {
                "model": models["data"][0]["id"], "input_ids": ids,
                "sampling_params": {"max_new_tokens": 2, "temperature": 0},
            }  # fmt: skip
            cached = []
            for _ in range(6):
                status, reply, _ = call(f"{gateway.url}/generate", body)
                assert status == 200, reply
                answer = reply[0] if isinstance(reply, list) else reply
                cached.append(answer["meta_info"]["cached_tokens"])
    assert cached == [(len(ids) - 1) // PAGE * PAGE] * 6
