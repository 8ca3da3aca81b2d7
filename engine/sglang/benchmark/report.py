"""The result as lines to read, and as one JSON line to keep."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sglang.benchmark.client import Outcome
from sglang.benchmark.errors import BenchmarkError
from sglang.benchmark.metrics import Numbers
from sglang.benchmark.options import Options

_WIDTH = 50
_LABEL = 40
_LATENCIES = (
    ("End-to-End Latency", "e2e_latency", "E2E Latency", ("mean", "median", "p90", "p99")),
    ("Time to First Token", "ttft", "TTFT", ("mean", "median", "p90", "p95", "p99")),
    ("Time per Output Token (excl. 1st token)", "tpot", "TPOT",
     ("mean", "median", "p90", "p95", "p99")),
    ("Inter-Token Latency", "itl", "ITL", ("mean", "median", "p90", "p95", "p99", "max")),
)  # fmt: skip


def lines(options: Options, numbers: Numbers) -> list[str]:
    out = [" Serving Benchmark Result ".center(_WIDTH, "=")]
    out += [_line(label, value) for label, value in _rows(options, numbers)]
    for title, name, short, which in _LATENCIES:
        if numbers[f"mean_{name}_ms"] is None:
            continue
        out.append(title.center(_WIDTH, "-"))
        out += [
            _line(f"{one.capitalize()} {short} (ms):", numbers[f"{one}_{name}_ms"]) for one in which
        ]
    if numbers["failures"]:
        out.append("Failures".center(_WIDTH, "-"))
        out += [
            f"{told['count']} x {kind}: {told['first']}"
            for kind, told in numbers["failures"].items()
        ]
    out.append("=" * _WIDTH)
    return out


def _rows(options: Options, numbers: Numbers) -> list[tuple[str, Any]]:
    rows = [
        ("Backend:", options.backend),
        ("Traffic request rate:", _rate(options)),
        ("Max request concurrency:", options.max_concurrency or "not set"),
        ("Successful requests:", numbers["completed"]),
        ("Failed requests:", numbers["failed"]),
        ("Benchmark duration (s):", numbers["duration"]),
        ("Total input tokens:", numbers["total_input_tokens"]),
        ("Total input text tokens:", numbers["total_input_tokens"]),
        ("Total generated tokens:", numbers["total_output_tokens"]),
        ("Request throughput (req/s):", numbers["request_throughput"]),
        ("Input token throughput (tok/s):", numbers["input_throughput"]),
        ("Output token throughput (tok/s):", numbers["output_throughput"]),
        ("Peak output token throughput (tok/s):", numbers["peak_output_throughput"]),
        ("Total token throughput (tok/s):", numbers["total_throughput"]),
        ("Concurrency:", numbers["concurrency"]),
    ]
    if numbers["accept_length"] is not None:
        rows.append(("Accept length:", numbers["accept_length"]))
    if options.goals:
        rows.append(("Request goodput (req/s):", numbers["request_goodput"]))
    if options.cache_report:
        rows.append(("Total cached tokens:", numbers["total_cached_tokens"]))
        share = numbers["total_cached_tokens"] / max(numbers["total_input_tokens"], 1)
        rows.append(("Cached share of input tokens:", share))
    return rows


def _rate(options: Options) -> str:
    return "trace" if options.dataset_name == "mooncake" else str(options.request_rate)


def _line(label: str, value: Any) -> str:
    return f"{label:<{_LABEL}} {f'{value:.2f}' if isinstance(value, float) else value}"


def record(
    options: Options, numbers: Numbers, outcomes: Sequence[Outcome], server_info: Any
) -> dict[str, Any]:
    """The JSON line; with `--output-details` one entry per request in its lists."""
    rate_is_number = math.isfinite(options.request_rate)
    result = {
        "tag": options.tag,
        "backend": options.backend,
        "dataset_name": options.dataset_name,
        "request_rate": options.request_rate if rate_is_number else _rate(options),
        "max_concurrency": options.max_concurrency,
        "sharegpt_output_len": options.sharegpt_output_len,
        "random_input_len": options.random_input_len,
        "random_output_len": options.random_output_len,
        "random_range_ratio": options.random_range_ratio,
        "lora_name": options.lora_name or None,
        "goodput": options.goals or None,
        **numbers,
        "server_info": server_info,
    }
    if options.output_details:
        result |= {
            "input_lens": [outcome.input_len for outcome in outcomes],
            "output_lens": [outcome.output_len for outcome in outcomes],
            "ttfts": [outcome.ttft for outcome in outcomes],
            "itls": [outcome.itls for outcome in outcomes],
            "generated_texts": [outcome.text for outcome in outcomes],
            "lora_names": [outcome.adapter for outcome in outcomes],
            "errors": [o.failure.message if o.failure else "" for o in outcomes],
        }
    return result


def append(path: str, result: dict[str, Any] | None) -> None:
    """Adds the line; without a result it only makes sure that the file can be written."""
    try:
        line = "" if result is None else json.dumps(result, allow_nan=False) + "\n"
    except ValueError as error:
        raise BenchmarkError(
            f"--output-file {path} is left as it was: the result has a number that JSON lacks "
            f"({error}); look for NaN and Infinity in the server's /server_info"
        ) from error
    try:
        with Path(path).expanduser().open("a", encoding="utf-8") as file:
            file.write(line)
    except OSError as error:
        raise BenchmarkError(f"--output-file {path} cannot be written: {error}") from error
