"""The benchmark of a server measures ours."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.processes import ROOT, Server

FLAGS = [
    "--dataset-name", "random-ids", "--num-prompts", "5", "--random-input-len", "24",
    "--random-output-len", "6", "--random-range-ratio", "1.0", "--max-concurrency", "2",
]  # fmt: skip


@pytest.mark.parametrize("backend", ["sglang", "sglang-oai", "sglang-oai-chat"])
def test_counts_are_the_server_s(server: Server, scratch: Path, backend: str) -> None:
    out = scratch / "result.jsonl"
    done = subprocess.run(
        [sys.executable, "-m", "sglang.bench_serving", "--base-url", server.url, *FLAGS,
         "--backend", backend, "--output-file", str(out), "--request-rate", "50"],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Successful requests:                     5" in done.stdout
    result = json.loads(out.read_text())
    assert (result["completed"], result["failures"]) == (5, {})
    assert result["total_output_tokens"] == 5 * 6
    if backend != "sglang-oai-chat":  # the template adds to it, and text is tokenized again
        assert result["total_input_tokens"] == 5 * 24
    assert 0 < result["mean_ttft_ms"] <= result["mean_e2e_latency_ms"]
    assert result["mean_itl_ms"] > 0
    assert result["server_info"]["max_total_num_tokens"] > 0


def test_shared_prefixes_come_from_the_cache(server: Server, scratch: Path) -> None:
    out = scratch / "result.jsonl"
    done = subprocess.run(
        [sys.executable, "-m", "sglang.cli.main", "bench", "serving", "--base-url", server.url,
         "--dataset-name", "generated-shared-prefix", "--gsp-num-groups", "2",
         "--gsp-prompts-per-group", "3", "--gsp-system-prompt-len", "48", "--gsp-question-len", "4",
         "--gsp-output-len", "2", "--gsp-ordered", "--max-concurrency", "1", "--cache-report",
         "--warmup-requests", "1", "--flush-cache", "--output-file", str(out)],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Total cached tokens:" in done.stdout
    # Two of three requests of each group find the group's prompt, and no more than that.
    assert json.loads(out.read_text())["total_cached_tokens"] == 2 * 2 * 48


def test_batch_of_a_running_server_is_measured(server: Server, scratch: Path) -> None:
    out = scratch / "result.jsonl"
    done = subprocess.run(
        [sys.executable, "-m", "sglang.bench_one_batch_server", "--base-url", server.url,
         "--batch-size", "2", "--input-len", "24", "--output-len", "4",
         "--result-filename", str(out)],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert (result["batch_size"], result["input_len"], result["output_len"]) == (2, 24, 4)
    assert 0 < result["ttft"] < result["latency"]


@pytest.mark.parametrize("backend", ["engine", "runtime"])
def test_throughput_without_a_server(scratch: Path, backend: str) -> None:
    out = scratch / "result.jsonl"
    done = subprocess.run(
        [sys.executable, "-m", "sglang.bench_offline_throughput", "--backend", backend,
         "--model-path", "demo", "--max-total-tokens", "4096", "--num-prompts", "4",
         "--random-input-len", "24", "--random-output-len", "4", "--random-range-ratio", "1.0",
         "--result-filename", str(out)],
        cwd=ROOT, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Successful requests:                     4" in done.stdout
    result = json.loads(out.read_text())
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (4 * 24, 4 * 4)


def test_cut_prompts_answer_like_whole_ones() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sglang.bench_one_batch", "--model-path", "demo", "--dtype",
         "float32", "--max-total-tokens", "2048", "--correctness-test"],
        cwd=ROOT, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("cut after 4 tokens: equal") == 3
