"""`python -m sglang.bench_one_batch_server`: one batch at a time through a server."""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from sglang.benchmark import engine_flags
from sglang.benchmark.errors import BenchmarkError
from sglang.benchmark.options import option

DESCRIPTION = "Measures a server on one batch at a time."
SILENCE_SECONDS = 3600.0
SEED = 42


@dataclass(frozen=True)
class OneBatchServerOptions:
    base_url: str = option("", "Address of a running server; empty: one is started for the run.")
    batch_size: list[int] = option([1], "Prompts at once; several numbers are measured in turn.")
    input_len: list[int] = option([1024], "Tokens of each prompt.")
    output_len: list[int] = option([16], "Tokens to answer.")
    temperature: float = option(0.0, "Sampling temperature.")
    run_name: str = option("default", "Label of the result.")
    result_filename: str = option("result.jsonl", "File for JSON lines; empty: none.")
    skip_warmup: bool = option(False, "Measure from the first batch on.")

    def check(self) -> None:
        """Raises ValueError that names the flag."""
        for name in ("batch_size", "input_len", "output_len"):
            for value in getattr(self, name):
                engine_flags.check_counts(**{name: value})
        if self.temperature < 0:
            raise ValueError(f"--temperature must not be negative, got {self.temperature}")


@dataclass(frozen=True)
class ServerResult:
    """Latencies in seconds, throughputs in tokens per second."""

    run_name: str
    batch_size: int
    input_len: int
    output_len: int
    latency: float
    ttft: float  # until every prompt has its first token
    input_throughput: float
    output_throughput: float
    overall_throughput: float

    def lines(self) -> list[str]:
        return [
            f"Batch of {self.batch_size}, {self.input_len} tokens in, {self.output_len} out",
            f"Latency: {self.latency:.3f} s, time to the first tokens: {self.ttft:.3f} s",
            f"Input throughput: {self.input_throughput:.2f} token/s",
            f"Output throughput: {self.output_throughput:.2f} token/s",
            f"Overall throughput: {self.overall_throughput:.2f} token/s",
        ]


def main(argv: Sequence[str], prog: str = "python -m sglang.bench_one_batch_server") -> int:
    """Prints the results; 1 if there are none."""
    options, others = engine_flags.split(OneBatchServerOptions, argv, prog, DESCRIPTION)
    try:
        with _server(options.base_url, others, prog) as url:
            timeout = httpx.Timeout(SILENCE_SECONDS)
            with httpx.Client(base_url=url, timeout=timeout, trust_env=False) as client:
                _run_all(client, options)
    except (BenchmarkError, OSError, RuntimeError, ValueError, httpx.HTTPError) as error:
        print(f"bench_one_batch_server: {error}", file=sys.stderr)
        return 1
    return 0


def run(
    client: httpx.Client, options: OneBatchServerOptions, shape: tuple[int, int, int]
) -> ServerResult:
    """One streamed batch of random prompts, computed from scratch."""
    batch_size, input_len, output_len = shape
    vocab = int(_json(client.get("/model_info"))["vocab_size"])
    draw = np.random.default_rng(SEED)
    body = {
        "input_ids": draw.integers(0, vocab, (batch_size, input_len)).tolist(),
        "sampling_params": {
            "temperature": options.temperature, "max_new_tokens": output_len, "ignore_eos": True,
        },
        "stream": True,
    }  # fmt: skip
    client.post("/flush_cache").raise_for_status()
    start, waiting, ttft = time.perf_counter(), set(range(batch_size)), 0.0
    for event in _events(client, body):
        if event["meta_info"]["completion_tokens"]:
            waiting.discard(event.get("index", 0))
        if not waiting and not ttft:
            ttft = time.perf_counter() - start
    if waiting:
        raise BenchmarkError(f"the stream ended, and {len(waiting)} prompts have no answer")
    latency = time.perf_counter() - start
    return ServerResult(
        options.run_name,
        *shape,
        latency=latency,
        ttft=ttft,
        input_throughput=batch_size * input_len / ttft,
        output_throughput=batch_size * output_len / max(latency - ttft, 1e-9),
        overall_throughput=batch_size * (input_len + output_len) / latency,
    )


def _run_all(client: httpx.Client, options: OneBatchServerOptions) -> None:
    shapes = list(product(options.batch_size, options.input_len, options.output_len))
    if not options.skip_warmup:
        run(client, options, shapes[0])
    for shape in shapes:
        result = run(client, options, shape)
        print("\n".join(result.lines()), flush=True)
        if options.result_filename:
            with Path(options.result_filename).open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")


def _events(client: httpx.Client, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    with client.stream("POST", "/generate", json=body) as answer:
        if answer.is_error:
            answer.read()
            raise _refusal(answer)
        for line in answer.iter_lines():
            data = line.removeprefix("data:").strip()
            if data and data != "[DONE]":
                event: dict[str, Any] = json.loads(data)
                if "error" in event:
                    raise BenchmarkError(f"the server's stream ended: {event['error']}")
                yield event


def _json(answer: httpx.Response) -> dict[str, Any]:
    if answer.is_error:
        raise _refusal(answer)
    return dict(answer.json())


def _refusal(answer: httpx.Response) -> BenchmarkError:
    return BenchmarkError(f"the server answers {answer.status_code}: {answer.text[:300]}")


@contextmanager
def _server(base_url: str, argv: Sequence[str], prog: str) -> Iterator[str]:
    if base_url:
        if argv:
            raise BenchmarkError(f"--base-url names a running server; leave out {argv[0]}")
        yield base_url
        return
    from sglang.lang.backend.runtime import Runtime

    with Runtime(**engine_flags.given(OneBatchServerOptions, argv, prog)) as runtime:
        yield runtime.url
