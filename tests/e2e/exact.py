"""`make exact`: greedy answers of every mode beside transformers', equal/total per mode.

The one difference that is allowed: at a step where the reference's two best logits lie within
1e-4 of each other, in at most one prompt of the twenty-four; it is printed.
"""

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e import processes, reference
from tests.e2e.reference import NEW_TOKENS, Answer

GAP = 1e-4
ALLOWED_TIES = 1
LOGPROB_TOLERANCE = 1e-3
RETRACTION_ROUNDS = 3  # who is admitted together depends on the order of arrival
# Small pool, and admission that hopes for short answers: running requests are retracted.
TIGHT = [
    "--page-size", "16", "--chunked-prefill-size", "128", "--max-total-tokens", "2304",
    "--schedule-conservativeness", "0.01", "--max-running-requests", "24",
]  # fmt: skip


@dataclass
class Mode:
    """What one mode gave."""

    name: str
    equal: int = 0
    ties: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    worst_logprob: float = 0.0
    notes: str = ""

    @property
    def passed(self) -> bool:
        return (
            not self.wrong
            and len(self.ties) <= ALLOWED_TIES
            and self.worst_logprob <= LOGPROB_TOLERANCE
        )


def compare(mode: Mode, number: int, answer: Answer, ids: list[int]) -> None:
    """Books one prompt's answer as equal, a tie or wrong."""
    if ids == answer.output_ids:
        mode.equal += 1
        return
    step = next(
        (i for i, (a, b) in enumerate(zip(ids, answer.output_ids, strict=False)) if a != b),
        min(len(ids), NEW_TOKENS),
    )
    text = f"prompt {number} step {step}"
    if step < len(ids) and answer.gaps[step] <= GAP and ids[step] == answer.runner_up_ids[step]:
        mode.ties.append(
            f"{text}: the reference's two best logits differ by {answer.gaps[step]:.1e}"
        )
    else:
        given = ids[step] if step < len(ids) else "nothing"
        want = answer.output_ids[step] if step < NEW_TOKENS else "nothing"
        mode.wrong.append(f"{text}: {given} instead of {want}")


def body(answer: Answer, **extra: Any) -> dict[str, Any]:
    params = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    return {"input_ids": answer.prompt_ids, "sampling_params": params, **extra}


def ask(url: str, payload: dict[str, Any]) -> dict[str, Any]:
    status, reply, _ = processes.call(f"{url}/generate", payload)
    if status != 200:
        raise AssertionError(f"/generate answered {status}: {reply}")
    return dict(reply)


def stream_ids(url: str, answer: Answer) -> list[int]:
    found = processes.events(f"{url}/generate", body(answer, stream=True))
    return list(found[-2]["output_ids"])


def flush(url: str) -> None:
    status, reply, _ = processes.call(f"{url}/flush_cache", method="POST", raw=b"")
    if status != 200:
        raise AssertionError(f"/flush_cache answered {status}: {reply}")


def check_logprobs(mode: Mode, answer: Answer, reply: dict[str, Any]) -> None:
    meta = reply["meta_info"]
    got = [row[0] for row in meta["input_token_logprobs"][1:]] + [
        row[0] for row in meta["output_token_logprobs"]
    ]
    want = answer.prompt_logprobs + answer.output_logprobs
    if len(got) != len(want):
        mode.wrong.append(f"{len(got)} logprobs instead of {len(want)}")
        return
    mode.worst_logprob = max(
        [mode.worst_logprob, *(abs(a - b) for a, b in zip(got, want, strict=True))]
    )


def run_mode(
    name: str, answers: list[Answer], one: Callable[[Answer], list[int]], workers: int = 1
) -> Mode:
    mode = Mode(name)
    with ThreadPoolExecutor(workers) as pool:
        for number, ids in enumerate(pool.map(one, answers), start=1):
            compare(mode, number, answers[number - 1], ids)
    return mode


def modes_of_a_roomy_engine(url: str, answers: list[Answer]) -> Iterator[Mode]:
    def cold(answer: Answer) -> list[int]:
        flush(url)
        return list(ask(url, body(answer))["output_ids"])

    def warm(answer: Answer) -> list[int]:
        ask(url, {**body(answer), "sampling_params": {"max_new_tokens": 0}})
        reply = ask(url, body(answer))
        cached = reply["meta_info"]["cached_tokens"]
        if cached < len(answer.prompt_ids) - 1:
            raise AssertionError(f"only {cached} of {len(answer.prompt_ids)} came from the cache")
        return list(reply["output_ids"])

    yield run_mode("cold", answers, cold)
    yield run_mode("warm", answers, warm)
    yield run_mode("streamed", answers, lambda a: stream_ids(url, a))
    flush(url)
    yield run_mode(
        "batched", answers, lambda a: list(ask(url, body(a))["output_ids"]), len(answers)
    )
    mode = Mode("logprobs")
    for number, answer in enumerate(answers, start=1):
        reply = ask(url, body(answer, return_logprob=True, logprob_start_len=0))
        compare(mode, number, answer, reply["output_ids"])
        check_logprobs(mode, answer, reply)
    mode.notes = f"largest logprob difference {mode.worst_logprob:.1e}"
    yield mode


def modes_of_a_tight_engine(url: str, answers: list[Answer]) -> Iterator[Mode]:
    yield run_mode("chunked", answers, lambda a: list(ask(url, body(a))["output_ids"]))
    retractions: list[int] = []

    def pressed(answer: Answer) -> list[int]:
        reply = ask(url, body(answer))
        retractions.append(reply["meta_info"]["num_retractions"])
        return list(reply["output_ids"])

    for _ in range(RETRACTION_ROUNDS):
        flush(url)
        mode = run_mode("retracted", answers, pressed, len(answers))
        if sum(retractions) or mode.wrong:
            break
    mode.notes = f"{sum(retractions)} retractions"
    if sum(retractions) == 0:
        mode.wrong.append("nothing was retracted: the pool is not tight enough to test this")
    yield mode


@contextlib.contextmanager
def served(folder: Path, *flags: str) -> Iterator[str]:
    with (
        processes.engine(folder, "--dtype", "float32", *flags, threads=2) as worker,
        processes.gateway(folder, [worker]) as gateway,
    ):
        yield gateway.url


def run(folder: Path) -> list[Mode]:
    answers = reference.load()
    modes: list[Mode] = []

    def show(mode: Mode) -> None:
        modes.append(mode)
        extra = "".join(f"\n    tie   {t}" for t in mode.ties) + "".join(
            f"\n    WRONG {w}" for w in mode.wrong
        )
        print(f"{mode.name:<10} {mode.equal}/{len(answers)} equal  {mode.notes}{extra}", flush=True)

    with served(folder) as url:
        for mode in modes_of_a_roomy_engine(url, answers):
            show(mode)
    with served(folder, *TIGHT) as url:
        for mode in modes_of_a_tight_engine(url, answers):
            show(mode)
    return modes


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        results = run(Path(scratch))
    print(
        json.dumps({mode.name: [mode.equal, len(mode.ties), len(mode.wrong)] for mode in results})
    )
    sys.exit(0 if all(mode.passed for mode in results) else 1)
