"""`python -m sglang.bench_serving`: latencies and rates of a running server under load."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from sglang.benchmark import datasets, report, target
from sglang.benchmark.backends import BACKENDS, Ask, Sampling
from sglang.benchmark.client import Clock, Outcome, Sender, arrival_times, run_all
from sglang.benchmark.errors import BenchmarkError
from sglang.benchmark.metrics import Numbers, summarize
from sglang.benchmark.options import Options, parse
from sglang.benchmark.tokens import LocalTokens, ServerTokens, Tokens

T = TypeVar("T")


def main(argv: Sequence[str], prog: str = "python -m sglang.bench_serving") -> int:
    """Prints the report; 1 if there is nothing to report or no request succeeded."""
    options = parse(argv, prog)
    try:
        numbers = asyncio.run(run(options))
    except BenchmarkError as error:
        print(f"bench_serving: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0 if numbers["completed"] else 1


async def run(options: Options, clock: Clock | None = None) -> Numbers:
    """One measurement, from waiting for the server to the written result."""
    clock = clock or Clock()
    if options.output_file:
        report.append(options.output_file, None)
    async with target.new_client(options) as client:
        first_model = await target.wait_ready(client, options, clock)
        model = options.served_model_name or options.model or first_model
        tokens: Tokens = (
            LocalTokens(options.tokenizer) if options.tokenizer else ServerTokens(client, model)
        )
        asks = await datasets.load(options, tokens)
        sender = Sender(
            client, BACKENDS[options.backend], _sampling(options, model), options.extra_body, clock
        )
        await target.warm_up(sender, asks, options.warmup_requests)
        if options.flush_cache:
            await target.flush_cache(client)
        arrivals = arrival_times(asks, options.request_rate, options.seed)
        send = _with_progress(sender.converse, len(asks), options)
        turns, duration = await run_all(asks, arrivals, send, clock, options.max_concurrency)
        outcomes = [outcome for conversation in turns for outcome in conversation]
        info = await target.server_info(client, options)
        numbers = summarize(outcomes, duration, options.goals)
        numbers["accept_length"] = target.accept_length(info)
        numbers["total_output_tokens_retokenized"] = await _retokenized(options, tokens, outcomes)
    # What was measured is on the screen before anything can go wrong with the file.
    _show(report.lines(options, numbers))
    if options.output_file:
        report.append(options.output_file, report.record(options, numbers, outcomes, info))
    return numbers


def _show(lines: Sequence[str]) -> None:
    """Prints; a reader that stops early, such as `head`, is no failure."""
    encoding = sys.stdout.encoding or "utf-8"
    text = "\n".join(lines).encode(encoding, "backslashreplace").decode(encoding)
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # What is left in the buffer is flushed once more when the process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _sampling(options: Options, model: str) -> Sampling:
    return Sampling(
        model=model,
        stream=not options.disable_stream,
        temperature=options.temperature,
        top_p=options.top_p,
        ignore_eos=not options.disable_ignore_eos,
        return_logprob=options.return_logprob,
    )


async def _retokenized(options: Options, tokens: Tokens, outcomes: Sequence[Outcome]) -> int | None:
    """Tokens of the answers' texts, counted here; only with a tokenizer of our own."""
    if options.tokenizer is None:
        return None
    texts = [outcome.text for outcome in outcomes if outcome.failure is None]
    return sum(map(len, await tokens.encode(texts)))


def _with_progress(
    converse: Callable[[Ask], Awaitable[T]], total: int, options: Options
) -> Callable[[Ask], Awaitable[T]]:
    """Shows on a terminal how many requests, or conversations, have ended."""
    if options.disable_tqdm or not sys.stderr.isatty():
        return converse
    ended = 0
    what = "requests" if options.num_turns == 1 else "conversations"

    async def counted(ask: Ask) -> T:
        nonlocal ended
        outcomes = await converse(ask)
        ended += 1
        end = "\n" if ended == total else ""
        print(f"\r{ended} of {total} {what} have ended", end=end, file=sys.stderr, flush=True)
        return outcomes

    return counted
