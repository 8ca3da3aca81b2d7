"""Whether a request's answer has the same bits whatever it is computed with.

`make determinism` counts the different answers, logprobs included, in three tests:

    single   the same prompt in batches of 1, 2, 3 … requests
    mixed    prompts of different lengths, mixed anew in every batch
    prefix   prompts that share a beginning of different lengths, cached or not

with and without --enable-deterministic-inference. In deterministic mode each prompt has one answer.
"""

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.e2e import exact, processes, reference

DETERMINISTIC = "--enable-deterministic-inference"
NEW_TOKENS = 8
PREFIX_LENS = (1, 60, 130, 300)
TESTS = ("single", "mixed", "prefix")

Prompt = tuple[int, ...]
Batch = list[Prompt]
# Per prompt the different answers, as JSON.
Answers = dict[Prompt, set[str]]


def batches(test: str, num_trials: int) -> Iterator[Batch]:
    """One batch per trial; the same ones at every call."""
    texts = [tuple(answer.prompt_ids) for answer in reference.load()]
    texts.sort(key=len)
    long = tuple(token for text in texts for token in text)
    chosen: dict[str, Batch] = {
        "single": [texts[len(texts) // 2]],
        "mixed": [texts[0], texts[len(texts) // 2], long[:200]],
        "prefix": [long[:length] + texts[0] for length in PREFIX_LENS],
    }
    dice = random.Random(test)
    for size in range(1, num_trials + 1):
        yield [dice.choice(chosen[test]) for _ in range(size)]


def ask(url: str, prompt: Prompt) -> str:
    """The answer's tokens and all of its logprobs."""
    params = {
        "temperature": 0.8, "top_p": 0.9, "sampling_seed": 11,
        "max_new_tokens": NEW_TOKENS, "ignore_eos": True,
    }  # fmt: skip
    status, reply, _ = processes.call(
        f"{url}/generate",
        {"input_ids": prompt, "sampling_params": params, "return_logprob": True,
         "top_logprobs_num": 3},
    )  # fmt: skip
    if status != 200:
        raise AssertionError(f"/generate answered {status}: {reply}")
    meta = reply["meta_info"]
    names = ("output_token_logprobs", "output_top_logprobs")
    return json.dumps([reply["output_ids"], *(meta[name] for name in names)])


def run_test(url: str, test: str, num_trials: int) -> Answers:
    """Every second trial finds nothing cached."""
    answers: Answers = {}
    with ThreadPoolExecutor(num_trials) as pool:
        for number, batch in enumerate(batches(test, num_trials)):
            if number % 2:
                exact.flush(url)
            given = pool.map(lambda prompt: ask(url, prompt), batch)
            for prompt, answer in zip(batch, given, strict=True):
                answers.setdefault(prompt, set()).add(answer)
    return answers


def greedy_ids(url: str, prompt_ids: list[int]) -> list[int]:
    reply = exact.ask(url, {
        "input_ids": prompt_ids,
        "sampling_params": {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True},
    })  # fmt: skip
    return list(reply["output_ids"])


def table(folder: Path, flags: list[str], num_trials: int) -> dict[str, list[int]]:
    """Per test the number of different answers of each prompt."""
    found: dict[str, list[int]] = {}
    with exact.served(folder, *flags) as url:
        for test in TESTS:
            answers: dict[Prompt, Any] = run_test(url, test, num_trials)
            ordered = [different for _, different in sorted(answers.items())]
            found[test] = [len(different) for different in ordered]
            tokens = [len({str(json.loads(answer)[0]) for answer in d}) for d in ordered]
            print(f"  {test:<7} {found[test]} answers per prompt, {tokens} by tokens", flush=True)
    return found


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--trials", type=int, default=50, help="batches of 1 … TRIALS requests")
    options.add_argument("--dtype", default="float32")
    given = options.parse_args()
    worst = 1
    with tempfile.TemporaryDirectory() as scratch:
        for name, flags in (("default", []), ("deterministic", [DETERMINISTIC])):
            print(f"{name}, {given.trials} trials:", flush=True)
            found = table(Path(scratch), ["--dtype", given.dtype, *flags], given.trials)
            if flags:
                worst = max(max(counts) for counts in found.values())
    return 0 if worst == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
