"""`python -m tests.e2e.sampled_schemas [--backend X] [--every N]`: real schemas, sampled documents.

Asks a server of the demo model for one document of each schema in ../shared/data/schemas.jsonl.gz
at temperature 1, 512 tokens at most, and checks with `jsonschema` those that ended by themselves.
"""

import argparse
import json
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema

from tests.e2e import processes
from tests.e2e.processes import Server, call
from tests.e2e.schemas import SCHEMAS, schemas

TOKENS = 512
AT_ONCE = 32
MANY = 1200.0  # seconds: more than 32 answers of 512 tokens take on a busy machine
MOST_EXAMPLE = 1000  # characters
LEAST_ENDED = 0.8  # of the served ones


@dataclass
class Outcome:
    """What became of one schema: refused, ended, length, wrong (ended, and does not satisfy it)."""

    name: str
    kind: str
    detail: str = ""


def ask(server: Server, row: dict[str, Any]) -> Outcome:
    name, schema = row["id"], row["schema"]
    body = {
        "prompt": prompt_of(row),
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        "temperature": 1,
        "max_tokens": TOKENS,
        "seed": 7,
    }
    status, reply, _ = call(f"{server.url}/v1/completions", body, timeout=MANY)
    if status == 400:
        return Outcome(name, "refused", reply["error"]["message"])
    assert status == 200, (name, status, reply)
    choice = reply["choices"][0]
    text = choice["text"]
    if choice["finish_reason"] == "length":
        return Outcome(name, "length", text)
    return Outcome(name, *judged(schema, text))


def prompt_of(row: dict[str, Any]) -> str:
    """Three lines that end where the fourth begins: examples, as a user would send them along."""
    examples = [json.dumps(test["data"]) for test in row["tests"] if test["valid"]]
    short = sorted((one for one in examples if len(one) <= MOST_EXAMPLE), key=len)[:3]
    if not short:
        title = row["schema"].get("title") or row["schema"].get("description") or "a thing"
        return f"{title[:200]}, as a short JSON document:\n"
    return "".join(f"{one}\n" for one in (short * 3)[:3])


def judged(schema: Any, text: str) -> tuple[str, str]:
    checker = jsonschema.validators.validator_for(schema)(schema)
    try:
        error = jsonschema.exceptions.best_match(checker.iter_errors(json.loads(text)))
    except ValueError:
        return "wrong", f"no JSON: {text}"
    return ("ended", text) if error is None else ("wrong", f"{error.message}: {text}")


def sample(backend: str, every: int) -> list[Outcome]:
    with tempfile.TemporaryDirectory() as scratch:
        flags = ("--grammar-backend", backend)
        with (
            processes.front_door(Path(scratch), *flags, env={"OMP_NUM_THREADS": "2"}) as server,
            ThreadPoolExecutor(AT_ONCE) as pool,
        ):
            waiting = [pool.submit(ask, server, one) for one in schemas(every)]
            outcomes = []
            for i, one in enumerate(waiting, 1):
                outcomes.append(one.result())
                print(f"\r{i} of {len(waiting)}", end="", file=sys.stderr, flush=True)
            print(file=sys.stderr)
            return outcomes


def report(backend: str, outcomes: list[Outcome]) -> bool:
    """Prints the counts; whether they are good enough."""
    counts = Counter(outcome.kind for outcome in outcomes)
    served = len(outcomes) - counts["refused"]
    ended = counts["ended"] + counts["wrong"]
    print(
        f"{backend}: {len(outcomes)} schemas, {counts['refused']} refused; "
        f"{ended} of {served} documents ended ({ended / max(served, 1):.0%}), "
        f"{counts['wrong']} wrong"
    )
    for outcome in outcomes:
        if outcome.kind == "wrong":
            print(f"  {outcome.name}: {outcome.detail[:300]}")
    return not counts["wrong"] and ended >= LEAST_ENDED * served


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.sampled_schemas")
    parser.add_argument("--backend", action="append", help="default: llguidance and xgrammar")
    parser.add_argument("--every", type=int, default=1, help="only each N-th schema")
    args = parser.parse_args()
    if not SCHEMAS.exists():
        raise SystemExit(f"{SCHEMAS.name} is missing: it belongs into ../shared/data")
    good = [
        report(backend, sample(backend, args.every))
        for backend in args.backend or ["llguidance", "xgrammar"]
    ]
    raise SystemExit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
