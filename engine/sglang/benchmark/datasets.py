"""What is asked: prompts from files, and prompts made up."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from sglang.benchmark.backends import BACKENDS, Ask, Json
from sglang.benchmark.errors import BenchmarkError
from sglang.benchmark.options import Options
from sglang.benchmark.records import (
    HASHES,
    NUMBER,
    SOME_OBJECTS,
    TEXT,
    Record,
    read_records,
    whole,
)
from sglang.benchmark.tokens import Tokens

TRACE_BLOCK = 512  # tokens that one hash of a mooncake trace stands for
DEFAULT_CHAT_OUTPUT_LEN = 256
SKEW = 1.5  # of skewed adapters: the n-th is asked for as often as n ** -SKEW says
_SLICE = 64  # prompts that are tokenized together
_SHORTEST = 2  # tokens; shorter prompts and answers of conversations are left out

Maker = Callable[[Options, Tokens, np.random.Generator], Awaitable[list[Ask]]]


async def load(options: Options, tokens: Tokens) -> list[Ask]:
    """The requests in the order in which they are sent, shaped for the backend."""
    asks = await _MAKERS[options.dataset_name](options, tokens, np.random.default_rng(options.seed))
    if not asks:
        raise BenchmarkError(f"--dataset-path {options.dataset_path} holds no usable prompt")
    return _with_adapters(await _shape(asks, options, tokens), options)


# ------------------------------------------------------------------ made up


async def _random_ids(options: Options, tokens: Tokens, rng: np.random.Generator) -> list[Ask]:
    vocab = await tokens.vocab_size()
    return [
        Ask(_ids(rng, vocab, input_len), output_len)
        for input_len, output_len in _lens(options, rng)
    ]


async def _shared_prefix(options: Options, tokens: Tokens, rng: np.random.Generator) -> list[Ask]:
    vocab = await tokens.vocab_size()
    asks, later = [], []
    for _ in range(options.gsp_num_groups):
        system = _ids(rng, vocab, options.gsp_system_prompt_len)
        for _ in range(options.gsp_prompts_per_group):
            question = _ids(rng, vocab, options.gsp_question_len)
            asks.append(Ask(system + question, options.gsp_output_len))
            for _ in range(options.gsp_num_turns - 1):
                later.append(_ids(rng, vocab, options.gsp_question_len))
    if later:
        asks = await _with_text(asks, tokens)
        questions = iter(await tokens.decode(later))
        asks = [
            replace(ask, follow_ups=tuple(islice(questions, options.gsp_num_turns - 1)))
            for ask in asks
        ]
    order = range(len(asks)) if options.gsp_ordered else rng.permutation(len(asks))
    return [asks[i] for i in order]


async def _mooncake(options: Options, tokens: Tokens, rng: np.random.Generator) -> list[Ask]:
    vocab = await tokens.vocab_size()
    asks = []
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    for record in read_records(options, keys):
        ids: list[int] = []
        for block in record.take("hash_ids", HASHES):
            # The same hash is the same block of tokens wherever it stands.
            ids += _ids(np.random.default_rng([options.seed, block]), vocab, TRACE_BLOCK)
        at = record.take("timestamp", NUMBER) / 1000 * options.mooncake_slowdown_factor
        input_len = record.take("input_length", whole(1))
        output_len = record.take("output_length", whole(0))
        asks.append(Ask(ids[:input_len], max(output_len, 1), at))
        if len(asks) == options.num_prompts:
            break
    if options.mooncake_num_rounds > 1:
        asks = await _with_text(asks, tokens)
        again = options.mooncake_num_rounds - 1
        asks = [replace(ask, follow_ups=(str(ask.prompt),) * again) for ask in asks]
    return sorted(asks, key=lambda ask: ask.at or 0.0)


def _ids(rng: np.random.Generator, vocab: int, count: int) -> list[int]:
    return list(map(int, rng.integers(0, vocab, count)))


def _lens(options: Options, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Prompt and answer tokens of each request."""
    columns = []
    for most in (options.random_input_len, options.random_output_len):
        least = max(int(most * options.random_range_ratio), 1)
        columns.append(map(int, rng.integers(least, most + 1, options.num_prompts)))
    return list(zip(*columns, strict=True))


# ------------------------------------------------------------------ from files


async def _random(options: Options, tokens: Tokens, rng: np.random.Generator) -> list[Ask]:
    """The file's texts, cut or repeated to random lengths."""
    prompts = [prompt for prompt, _ in _conversations(options)]
    if not prompts:
        return []
    lens = _lens(options, rng)
    order = [int(i) for i in rng.permutation(len(prompts))]
    chosen = [prompts[order[i % len(order)]] for i in range(len(lens))]
    cut = []
    for ids, (input_len, _) in zip(await tokens.encode(chosen), lens, strict=True):
        repeated = (ids or [0]) * (input_len // max(len(ids), 1) + 1)
        cut.append(repeated[:input_len])
    texts = await tokens.decode(cut)
    return [Ask(text, output_len) for text, (_, output_len) in zip(texts, lens, strict=True)]


async def _sharegpt(options: Options, tokens: Tokens, rng: np.random.Generator) -> list[Ask]:
    """First turns, with answers as long as the file's."""
    pairs = list(_conversations(options))
    order = [pairs[int(i)] for i in rng.permutation(len(pairs))]
    asks: list[Ask] = []
    for start in range(0, len(order), _SLICE):
        part = order[start : start + _SLICE]
        prompts = await tokens.encode([prompt for prompt, _ in part])
        answers = await tokens.encode([answer for _, answer in part])
        for (text, _), prompt, answer in zip(part, prompts, answers, strict=True):
            output_len = options.sharegpt_output_len or len(answer)
            whole = len(prompt) + output_len
            if min(len(prompt), output_len) < _SHORTEST or (
                options.sharegpt_context_len and whole > options.sharegpt_context_len
            ):
                continue
            asks.append(Ask(text, output_len))
        if len(asks) >= options.num_prompts:
            break
    return asks[: options.num_prompts]


async def _openai(options: Options, tokens: Tokens, rng: np.random.Generator) -> list[Ask]:
    """Whole chats, in the file's order."""
    asks = []
    length = whole(1).or_none()
    for record in read_records(options, ("messages",)):
        own = record.take("max_completion_tokens", length) or record.take("max_tokens", length)
        output_len = options.sharegpt_output_len or own or DEFAULT_CHAT_OUTPUT_LEN
        asks.append(Ask(record.take("messages", SOME_OBJECTS), output_len))
        if len(asks) == options.num_prompts:
            break
    return asks


def _conversations(options: Options) -> Iterator[tuple[str, str]]:
    """First prompt and first answer of every conversation that has both."""
    for record in read_records(options, ()):
        turns = record.parts("conversations") or record.parts("conversation")
        texts = [_text_of(turn) for turn in turns[:2]]
        if len(texts) == 2 and all(texts):
            yield texts[0], texts[1]


def _text_of(turn: Record) -> str:
    kind = TEXT.or_none()
    return turn.take("value", kind) or turn.take("content", kind) or ""


# ------------------------------------------------------------------ for the backend


async def _shape(asks: list[Ask], options: Options, tokens: Tokens) -> list[Ask]:
    backend = BACKENDS[options.backend]
    if options.prompt_suffix:
        [suffix] = await tokens.encode([options.prompt_suffix])
        asks = [_extended(ask, options.prompt_suffix, suffix) for ask in asks]
    if options.apply_chat_template:
        asks = await _with_text(asks, tokens)
        return _with_prompts(asks, await tokens.render([ask.messages for ask in asks]))
    if backend.is_chat:
        return await _with_text(asks, tokens)
    texts = [ask.prompt for ask in asks if isinstance(ask.prompt, str)]
    if options.tokenize_prompt and len(texts) == len(asks):
        return _with_prompts(asks, await tokens.encode(texts))
    return asks


def _extended(ask: Ask, text: str, ids: list[int]) -> Ask:
    follow_ups = tuple(question + text for question in ask.follow_ups)
    return replace(ask, prompt=_longer(ask, text, ids), follow_ups=follow_ups)


def _longer(ask: Ask, text: str, ids: list[int]) -> str | list[int] | list[Json]:
    if isinstance(ask.prompt, str):
        return ask.prompt + text
    last = ask.prompt[-1]
    if isinstance(last, dict):
        return [*ask.messages[:-1], {**last, "content": f"{last.get('content', '')}{text}"}]
    return [*(i for i in ask.prompt if isinstance(i, int)), *ids]


async def _with_text(asks: list[Ask], tokens: Tokens) -> list[Ask]:
    """Token ids become text; chats stay."""
    ids = [[i for i in ask.prompt if isinstance(i, int)] for ask in asks]
    if not all(ids):
        return asks
    return _with_prompts(asks, await tokens.decode(ids))


def _with_prompts(asks: list[Ask], prompts: Any) -> list[Ask]:
    return [replace(ask, prompt=prompt) for ask, prompt in zip(asks, prompts, strict=True)]


def _with_adapters(asks: list[Ask], options: Options) -> list[Ask]:
    """An adapter for each, drawn apart from the prompts, which stay the same."""
    count = len(options.lora_name)
    if not count:
        return asks
    if options.lora_request_distribution == "distinct":
        chosen = np.arange(len(asks)) % count
    else:
        skew = SKEW if options.lora_request_distribution == "skewed" else 0.0
        weights = np.arange(1, count + 1) ** -skew
        rng = np.random.default_rng([options.seed, count])
        chosen = rng.choice(count, len(asks), p=weights / weights.sum())
    pairs = zip(asks, chosen, strict=True)
    return [replace(ask, adapter=options.lora_name[which]) for ask, which in pairs]


_MAKERS: dict[str, Maker] = {
    "sharegpt": _sharegpt,
    "custom": _sharegpt,
    "openai": _openai,
    "random": _random,
    "random-ids": _random_ids,
    "generated-shared-prefix": _shared_prefix,
    "mooncake": _mooncake,
}
