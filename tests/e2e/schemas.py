"""`python -m tests.e2e.schemas [--backend X] [--every N]`: real schemas and instances, by masks.

Each schema of ../shared/data/schemas.jsonl.gz is compiled. Its valid instances have to be allowed
token by token, with an end after the last; the invalid ones must not be. Instances are written
compactly, with spaces, and with their names in the order of the schema. Prints counts and times;
fails on a wrong acceptance.
"""

import argparse
import gzip
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import jsonschema
import torch

from sglang.srt.constrained.base_grammar_backend import (
    BaseGrammarBackend,
    BaseGrammarObject,
    create_grammar_backend,
)
from sglang.srt.entrypoints.demo_model import ensure_demo
from tests.e2e import processes

SCHEMAS = processes.ROOT.parent / "shared/data/schemas.jsonl.gz"
BACKENDS = ("llguidance", "xgrammar")
Encode = Any  # text -> ids


@dataclass
class Outcome:
    """What was seen with one backend."""

    counts: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    wrong_acceptances: list[str] = field(default_factory=list)
    wrong_rejections: list[str] = field(default_factory=list)
    disputed: list[str] = field(default_factory=list)  # valid in the data, not to jsonschema
    compile_seconds: list[float] = field(default_factory=list)
    first_masks: list[float] = field(default_factory=list)
    masks: list[float] = field(default_factory=list)


def schemas(every: int = 1) -> list[dict[str, Any]]:
    with gzip.open(SCHEMAS, "rt") as lines:
        return [json.loads(line) for line in lines][::every]


class Walker:
    """Feeds instances to the masks of one backend."""

    def __init__(self, backend: BaseGrammarBackend, encode: Encode, vocab_size: int, end: int):
        self._backend, self._encode, self._end = backend, encode, end
        self._vocab_size = vocab_size
        self.outcome = Outcome()

    def walk(self, row: dict[str, Any]) -> None:
        name, seen = row["id"], self.outcome
        text = json.dumps(row["schema"])
        begin = time.perf_counter()
        try:
            why = self._backend.check("json", text)
            grammar = None if why else self._backend.compile_grammar("json", text)
        except Exception as error:  # noqa: BLE001  # counted by its text
            why = str(error)
        seen.compile_seconds.append(time.perf_counter() - begin)
        if why:
            seen.counts["refused"] += 1
            seen.refused[why.partition(" of the schema: ")[2][:70] or why[:70]] += 1
            return
        seen.counts["compiled"] += 1
        for test in row["tests"]:
            self._judge(grammar, name, row["schema"], test)

    def _judge(self, grammar: Any, name: str, schema: Any, test: dict[str, Any]) -> None:
        seen, data = self.outcome, test["data"]
        spellings = list(written(schema, data))
        accepted = [text for text in spellings if self.stopped_at(grammar, text) is None]
        valid = test["valid"]
        seen.counts[f"{'valid' if valid else 'invalid'}, {'' if accepted else 'not '}accepted"] += 1
        if valid and spellings[0] not in accepted and accepted:
            seen.counts["valid, accepted in the schema's order of names only"] += 1
        if not valid and accepted:
            seen.wrong_acceptances.append(f"{name}: {accepted[0][:200]}")
        if valid and not accepted:
            at = self.stopped_at(grammar, spellings[-1])
            seen.wrong_rejections.append(f"{name}: {spellings[-1][:at][-80:]} ▌")
        if valid and not is_valid(schema, data):
            seen.disputed.append(name)

    def stopped_at(self, grammar: BaseGrammarObject, text: str) -> int | None:
        """Where the masks do not let the text go on, roughly, in characters; None: nowhere."""
        state = grammar.copy()
        mask = state.allocate_vocab_mask(self._vocab_size, 1, "cpu")
        ids = self._encode(text)
        for index, token in enumerate([*ids, self._end]):
            begin = time.perf_counter()
            state.fill_vocab_mask(mask, 0)
            took = time.perf_counter() - begin
            (self.outcome.masks if index else self.outcome.first_masks).append(took)
            if not allows(mask, token):
                return index * len(text) // max(len(ids), 1)
            state.accept_token(token)
        assert state.is_terminated()
        return None


def allows(mask: torch.Tensor, token: int, row: int = 0) -> bool:
    return bool(int(mask[row, token // 32]) >> (token % 32) & 1)


def is_valid(schema: Any, data: Any) -> bool:
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    return bool(kind(schema).is_valid(data))


def written(schema: Any, data: Any) -> Iterator[str]:
    """The instance as given and in the schema's order of names, compactly and with spaces."""
    for value in (data, in_order(data, [schema], schema)):
        yield json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        yield json.dumps(value, ensure_ascii=False)


def in_order(data: Any, schemas: list[Any], root: Any) -> Any:
    """The same value, its names in the order in which the schemas declare them."""
    known = flat(schemas, root)
    if isinstance(data, list):
        ahead = [
            s.get("prefixItems", s["items"] if isinstance(s.get("items"), list) else [])
            for s in known
        ]
        rest = [s["items"] for s in known if isinstance(s.get("items"), dict)]
        rest += [s["additionalItems"] for s in known if isinstance(s.get("additionalItems"), dict)]
        return [
            in_order(each, [a[i] for a in ahead if i < len(a)] + rest, root)
            for i, each in enumerate(data)
        ]
    if not isinstance(data, dict):
        return data
    names = [name for s in known for name in s.get("properties", ())]
    names += [name for s in known for name in s.get("required", ())]
    order = {name: index for index, name in reversed(list(enumerate(names)))}
    others = [
        inner
        for s in known
        for inner in (s.get("additionalProperties"), *s.get("patternProperties", {}).values())
    ]
    return {
        name: in_order(
            data[name],
            [s["properties"][name] for s in known if name in s.get("properties", ())] + others,
            root,
        )
        for name in sorted(data, key=lambda name: order.get(name, len(names)))
    }


def flat(schemas: list[Any], root: Any) -> list[dict[str, Any]]:
    """These schemas and what they are made of, as far as it speaks of the same value."""
    found: list[dict[str, Any]] = []
    waiting = list(reversed(schemas))
    while waiting:
        schema = waiting.pop()
        if not isinstance(schema, dict) or any(schema is each for each in found):
            continue
        found.append(schema)
        inner = [s for keyword in ("allOf", "anyOf", "oneOf") for s in schema.get(keyword, ())]
        ref = schema.get("$ref", "")
        if ref.startswith("#"):
            target = root
            for part in unquote(ref).split("/")[1:]:
                key = part.replace("~1", "/").replace("~0", "~")
                target = target[int(key)] if isinstance(target, list) else target[key]
            inner.append(target)
        waiting.extend(reversed(inner))
    return found


def report(backend: str, seen: Outcome) -> None:
    print(f"== {backend}")
    for name, count in sorted(seen.counts.items()):
        print(f"{count:6} {name}")
    print(f"{len(seen.wrong_acceptances):6} wrong acceptances")
    for line in seen.wrong_acceptances:
        print(f"       ! {line}")
    print(f"{len(seen.wrong_rejections):6} wrong rejections")
    for line in seen.wrong_rejections:
        print(f"       {line}")
    print(f"{len(seen.disputed):6} instances are valid in the data and not to jsonschema")
    for why, count in seen.refused.most_common():
        print(f"{count:6} refused: {why}")
    for name, times in (
        ("compile", seen.compile_seconds),
        ("first mask", seen.first_masks),
        ("mask", seen.masks),
    ):
        ordered = sorted(times)
        mean, p99 = sum(ordered) / len(ordered), ordered[int(len(ordered) * 0.99)]
        figures = (f"{value * 1e6:.0f} us" for value in (mean, p99, ordered[-1]))
        print(f"{name}: mean, p99, max: {', '.join(figures)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=BACKENDS, help="default: each")
    parser.add_argument("--every", type=int, default=1, help="only every N-th schema")
    args = parser.parse_args()
    from sglang_router.text import Tokenizer

    torch.set_num_threads(1)
    tokenizer = Tokenizer(ensure_demo(lambda phase, done, size: None))
    end, wrong = tokenizer.eos_token_ids[0], 0
    for name in [args.backend] if args.backend else BACKENDS:
        options = SimpleNamespace(grammar_backend=name, reasoning_parser=None)
        backend = create_grammar_backend(options, tokenizer, tokenizer.vocab_size, {end})
        assert backend is not None
        try:
            walker = Walker(
                backend, lambda text: tokenizer.encode(text, False), tokenizer.vocab_size, end
            )
            for row in schemas(args.every):
                walker.walk(row)
        finally:
            backend.close()
        report(name, walker.outcome)
        wrong += len(walker.outcome.wrong_acceptances)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
