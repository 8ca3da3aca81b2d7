"""`python -m sglang.bench_offline_throughput`: all prompts at once, by an engine of our own."""

import asyncio
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol

from sglang.benchmark import datasets, engine_flags
from sglang.benchmark.backends import Ask
from sglang.benchmark.errors import BenchmarkError
from sglang.benchmark.options import DATASETS, DatasetOptions, Options, option
from sglang.benchmark.tokens import LocalTokens

DESCRIPTION = "Measures how fast an engine answers prompts that are all there from the start."
MOST_PROMPTS = 1024  # of one HTTP request
NUM_WARM_UPS = 16
WARM_UP_LEN = 16
WIDTH, LABEL = 50, 40
NOT_OFFLINE = ("openai", "mooncake")  # chats, and times of arrival


@dataclass(frozen=True)
class OfflineOptions(DatasetOptions):
    backend: str = option(
        "engine", "engine: in this process; runtime: over HTTP.", ("engine", "runtime")
    )
    dataset_name: str = option(
        "random-ids", "What is asked.", [name for name in DATASETS if name not in NOT_OFFLINE]
    )
    seed: int = option(1, "Of everything that is drawn.")
    extra_request_body: str = option("", "JSON object that is merged into the sampling parameters.")
    skip_warmup: bool = option(False, "Measure from the first prompt on.")
    result_filename: str = option("", "File that a JSON line is appended to.")

    @property
    def data(self) -> Options:
        """What the data sets are made by."""
        return Options(**{one.name: getattr(self, one.name) for one in fields(DatasetOptions)})

    def check(self) -> None:
        """Raises ValueError that names the flag."""
        self.data.check()


@dataclass(frozen=True)
class Throughput:
    """What was measured: seconds, and numbers per second."""

    backend: str
    successful_requests: int
    total_latency: float
    total_input_tokens: int
    total_output_tokens: int
    request_throughput: float
    input_throughput: float
    output_throughput: float
    total_throughput: float

    @classmethod
    def of(cls, backend: str, replies: Sequence[Any], seconds: float) -> "Throughput":
        infos = [reply["meta_info"] for reply in replies]
        prompts = sum(info["prompt_tokens"] for info in infos)
        answers = sum(info["completion_tokens"] for info in infos)
        return cls(
            backend=backend,
            successful_requests=len(replies),
            total_latency=seconds,
            total_input_tokens=prompts,
            total_output_tokens=answers,
            request_throughput=len(replies) / seconds,
            input_throughput=prompts / seconds,
            output_throughput=answers / seconds,
            total_throughput=(prompts + answers) / seconds,
        )

    def lines(self) -> list[str]:
        rows: list[tuple[str, Any]] = [
            ("Backend:", self.backend),
            ("Successful requests:", self.successful_requests),
            ("Benchmark duration (s):", self.total_latency),
            ("Total input tokens:", self.total_input_tokens),
            ("Total generated tokens:", self.total_output_tokens),
            ("Request throughput (req/s):", self.request_throughput),
            ("Input token throughput (tok/s):", self.input_throughput),
            ("Output token throughput (tok/s):", self.output_throughput),
            ("Total token throughput (tok/s):", self.total_throughput),
        ]
        told = [(label, f"{v:.2f}" if isinstance(v, float) else v) for label, v in rows]
        title = " Offline Throughput Benchmark Result ".center(WIDTH, "=")
        return [title, *(f"{label:<{LABEL}} {value}" for label, value in told), "=" * WIDTH]


class Backend(Protocol):
    """Whoever answers."""

    tokenizer_folder: str

    def answer(self, fields: dict[str, Any]) -> list[Any]:
        """The replies to the fields of one `/generate`, which hold a list of prompts."""

    def flush(self) -> None:
        """Forgets cached prefixes."""


class EngineBackend:
    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.tokenizer_folder = str(engine.get_server_info()["tokenizer_path"])

    def answer(self, fields: dict[str, Any]) -> list[Any]:
        prompts = {"prompt": fields.pop("text")} if "text" in fields else {}
        return list(self._engine.generate(**prompts, **fields))

    def flush(self) -> None:
        self._engine.flush_cache()


class RuntimeBackend:
    """The same over HTTP, as many prompts at a time as one request may hold."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self.tokenizer_folder = str(runtime.endpoint.model_info["tokenizer_path"])

    def answer(self, fields: dict[str, Any]) -> list[Any]:
        replies: list[Any] = []
        name = "text" if "text" in fields else "input_ids"
        for start in range(0, len(fields[name]), MOST_PROMPTS):
            part = {
                key: fields[key][start : start + MOST_PROMPTS] for key in (name, "sampling_params")
            }
            replies += self._runtime.endpoint.ask({**fields, **part})
        return replies

    def flush(self) -> None:
        self._runtime.flush_cache()


def main(argv: Sequence[str], prog: str = "python -m sglang.bench_offline_throughput") -> int:
    """Prints the result; 1 if there is none."""
    options, others = engine_flags.split(OfflineOptions, argv, prog, DESCRIPTION)
    try:
        with _backend(options.backend, others, prog) as backend:
            measured = measure(options, backend)
    except (BenchmarkError, OSError, RuntimeError, ValueError) as error:
        print(f"bench_offline_throughput: {error}", file=sys.stderr)
        return 1
    print("\n".join(measured.lines()), flush=True)
    if options.result_filename:
        with Path(options.result_filename).open("a") as file:
            file.write(json.dumps(asdict(measured)) + "\n")
    return 0


def measure(options: OfflineOptions, backend: Backend) -> Throughput:
    """Asks everything, after a few short prompts of the same kind."""
    asks = asyncio.run(datasets.load(options.data, LocalTokens(backend.tokenizer_folder)))
    if not options.skip_warmup:
        short = [Ask(ask.prompt[:WARM_UP_LEN], WARM_UP_LEN) for ask in asks[:NUM_WARM_UPS]]
        backend.answer(_fields(options, short))
        backend.flush()
    fields = _fields(options, asks)
    start = time.perf_counter()
    replies = backend.answer(fields)
    seconds = time.perf_counter() - start
    return Throughput.of(options.backend, replies, seconds)


def _fields(options: OfflineOptions, asks: Sequence[Ask]) -> dict[str, Any]:
    shared = {
        "temperature": 0.0,
        "ignore_eos": not options.disable_ignore_eos,
        **options.extra_body,
    }
    name = "text" if isinstance(asks[0].prompt, str) else "input_ids"
    return {
        name: [ask.prompt for ask in asks],
        "sampling_params": [{**shared, "max_new_tokens": ask.output_len} for ask in asks],
        "return_logprob": options.return_logprob,
    }


@contextmanager
def _backend(name: str, argv: Sequence[str], prog: str) -> Iterator[Backend]:
    if name == "engine":
        from sglang.srt.entrypoints.offline.engine import Engine

        with Engine(server_args=engine_flags.engine_args(OfflineOptions, argv, prog)) as engine:
            yield EngineBackend(engine)
        return
    from sglang.lang.backend.runtime import Runtime

    with Runtime(**engine_flags.given(OfflineOptions, argv, prog)) as runtime:
        yield RuntimeBackend(runtime)
