"""`python -m sglang.bench_one_batch`: one batch through the model, without a server."""

import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang.benchmark import engine_flags
from sglang.benchmark.options import option
from sglang.benchmark.static_worker import StaticWorker

if TYPE_CHECKING:
    from sglang.srt.core.request import Req

DESCRIPTION = "Measures the model on one batch: no server, no scheduler."
WARM_UP_OUTPUT_LEN = 4
SEED = 42
TEST_PROMPTS = ("The capital of France is", "Once upon a time, there was", "Water boils at a")
TEST_OUTPUT_LEN = 16


@dataclass(frozen=True)
class OneBatchOptions:
    batch_size: list[int] = option([1], "Prompts at once; several numbers are measured in turn.")
    input_len: list[int] = option([1024], "Tokens of each prompt.")
    output_len: list[int] = option([16], "Tokens to answer.")
    run_name: str = option("default", "Label of the result.")
    result_filename: str = option("result.jsonl", "File for JSON lines; empty: none.")
    correctness_test: bool = option(
        False, "Measure nothing; compare cut prompts with whole ones instead."
    )
    cut_len: int = option(4, "Where the test cuts prompts, in tokens.")
    log_decode_step: int = option(0, "Print every so many decode steps; 0: none.")
    profile: bool = option(False, "Write a trace of each measured run, for chrome://tracing.")

    def check(self) -> None:
        """Raises ValueError that names the flag."""
        for name in ("batch_size", "input_len", "output_len"):
            for value in getattr(self, name):
                engine_flags.check_counts(**{name: value})
        engine_flags.check_counts(cut_len=self.cut_len)
        if self.log_decode_step < 0:
            raise ValueError(f"--log-decode-step must not be negative, got {self.log_decode_step}")


@dataclass(frozen=True)
class Result:
    """Latencies in seconds, throughputs in tokens per second."""

    run_name: str
    batch_size: int
    input_len: int
    output_len: int
    prefill_latency: float
    prefill_throughput: float
    median_decode_latency: float | None  # None: the first token was the last
    median_decode_throughput: float | None
    total_latency: float
    overall_throughput: float

    @classmethod
    def of(cls, options: OneBatchOptions, shape: tuple[int, int, int], steps: list[float]) -> Any:
        """`steps`: seconds of the prefill, and of each decode step."""
        batch_size, input_len, output_len = shape
        prefill, decodes, total = steps[0], steps[1:], sum(steps)
        median = statistics.median(decodes) if decodes else None
        return cls(
            options.run_name,
            *shape,
            prefill_latency=prefill,
            prefill_throughput=batch_size * input_len / prefill,
            median_decode_latency=median,
            median_decode_throughput=batch_size / median if median else None,
            total_latency=total,
            overall_throughput=batch_size * (input_len + output_len) / total,
        )

    def lines(self) -> list[str]:
        lines = [
            f"Batch of {self.batch_size}, {self.input_len} tokens in, {self.output_len} out",
            _line("Prefill", self.prefill_latency, self.prefill_throughput),
        ]
        if self.median_decode_latency is not None and self.median_decode_throughput is not None:
            median = self.median_decode_latency, self.median_decode_throughput
            lines.append(_line("Decode. median", *median))
        return [*lines, _line("Total", self.total_latency, self.overall_throughput)]


def main(argv: Sequence[str], prog: str = "python -m sglang.bench_one_batch") -> int:
    """Prints the result; 1 if there is none, or if the correctness test fails."""
    options, others = engine_flags.split(OneBatchOptions, argv, prog, DESCRIPTION)
    try:
        args = engine_flags.engine_args(OneBatchOptions, others, prog)
        worker = StaticWorker(args)
        if options.correctness_test:
            return 0 if _is_correct(worker, str(args.tokenizer_path), options.cut_len) else 1
        shapes = list(product(options.batch_size, options.input_len, options.output_len))
        for batch_size, input_len, output_len in shapes:
            worker.check_fits(batch_size, input_len + output_len)
        first = (*shapes[0][:2], min(shapes[0][2], WARM_UP_OUTPUT_LEN))
        run(worker, first)
        for shape in shapes:
            _measure(worker, options, shape)
    except (OSError, ValueError) as error:
        print(f"bench_one_batch: {error}", file=sys.stderr)
        return 1
    return 0


def run(
    worker: StaticWorker,
    shape: tuple[int, int, int],
    on_step: Callable[[int, float], None] = lambda step, seconds: None,
) -> list[float]:
    """Seconds of the prefill and of each decode step, on random tokens."""
    batch_size, input_len, output_len = shape
    draw = random.Random(SEED)
    prompts = [
        [draw.randrange(worker.vocab_size) for _ in range(input_len)] for _ in range(batch_size)
    ]
    reqs = worker.requests(prompts, output_len)
    steps = [_timed(lambda: worker.extend(reqs, [input_len] * batch_size))]
    for step in range(1, output_len):
        steps.append(_timed(lambda: worker.decode(reqs)))
        on_step(step, steps[-1])
    worker.release(reqs)
    return steps


def answers(worker: StaticWorker, prompts: Sequence[list[int]], cut_len: int | None) -> list[Any]:
    """Greedy answers; with `cut_len` the prompts are computed in two passes."""
    reqs: list[Req] = worker.requests(prompts, TEST_OUTPUT_LEN)
    if cut_len is not None and (long := [req for req in reqs if req.seq_len > cut_len]):
        worker.extend(long, [cut_len] * len(long))
    worker.extend(reqs, [req.seq_len - req.kv_committed_len for req in reqs])
    while len(reqs[0].output_ids) < TEST_OUTPUT_LEN:
        worker.decode(reqs)
    worker.release(reqs)
    return [req.output_ids for req in reqs]


def _measure(worker: StaticWorker, options: OneBatchOptions, shape: tuple[int, int, int]) -> None:
    def show(step: int, seconds: float) -> None:
        if options.log_decode_step and step % options.log_decode_step == 0:
            print(_line(f"Decode {step}. Batch size: {shape[0]}", seconds, shape[0] / seconds))

    trace = f"{options.run_name}-batch{shape[0]}-in{shape[1]}-out{shape[2]}.trace.json"
    with _profile(trace if options.profile else None):
        steps = run(worker, shape, show)
    result = Result.of(options, shape, steps)
    print("\n".join(result.lines()), flush=True)
    if options.result_filename:
        with Path(options.result_filename).open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")


def _is_correct(worker: StaticWorker, tokenizer_path: str, cut_len: int) -> bool:
    """Shows the answers to a few prompts, and whether a cut makes a difference."""
    from sglang.srt.model_loader.assets import ensure_assets
    from sglang_router.text import Tokenizer

    tokenizer = Tokenizer(ensure_assets(Path(tokenizer_path)))
    prompts = [list(tokenizer.encode(text)) for text in TEST_PROMPTS]
    whole, cut = answers(worker, prompts, None), answers(worker, prompts, cut_len)
    for text, first, second in zip(TEST_PROMPTS, whole, cut, strict=True):
        verdict = "equal" if first == second else f"NOT equal: {tokenizer.decode(second)!r}"
        print(f"{text!r} → {tokenizer.decode(first)!r}; cut after {cut_len} tokens: {verdict}")
    return whole == cut


@contextmanager
def _profile(path: str | None) -> Iterator[None]:
    if path is None:
        yield
        return
    from torch import profiler

    with profiler.profile() as recorded:
        yield
    recorded.export_chrome_trace(path)
    print(f"The trace is in {path}.")


def _timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _line(what: str, seconds: float, rate: float) -> str:
    return f"{what}. latency: {seconds:9.5f} s, throughput: {rate:10.2f} token/s"
