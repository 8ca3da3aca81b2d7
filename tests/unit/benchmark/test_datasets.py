"""Prompts of every data set, in the form that the backend takes."""

import gzip
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sglang.benchmark.backends import Ask
from sglang.benchmark.datasets import load
from sglang.benchmark.errors import BenchmarkError
from sglang.benchmark.options import Options
from tests.unit.benchmark.fake_server import VOCAB, ids_of, text_of


class Words:
    """Words are tokens."""

    async def vocab_size(self) -> int:
        return VOCAB

    async def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [ids_of(text) for text in texts]

    async def decode(self, prompts: Sequence[list[int]]) -> list[str]:
        return [text_of(ids) for ids in prompts]

    async def render(self, chats: Sequence[list[dict[str, Any]]]) -> list[list[int]]:
        return [[0, *ids_of(chat[-1]["content"]), 1] for chat in chats]


async def prompts(**options: Any) -> list[Ask]:
    checked = Options(**options)
    checked.check()
    return await load(checked, Words())


def written(path: Path, records: list[Any], lines: bool) -> str:
    text = "\n".join(map(json.dumps, records)) if lines else json.dumps(records)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)


def conversation(prompt: str, answer: str, key: str = "value") -> dict[str, Any]:
    return {"conversations": [{"from": "human", key: prompt}, {"from": "gpt", key: answer}]}


async def test_random_ids_have_lengths_within_the_range() -> None:
    asks = await prompts(
        dataset_name="random-ids", num_prompts=200, random_input_len=40, random_output_len=10,
        random_range_ratio=0.5,
    )  # fmt: skip
    lens = [len(ask.prompt) for ask in asks]
    assert len(asks) == 200 and (min(lens), max(lens)) == (20, 40)
    assert {ask.output_len for ask in asks} == set(range(5, 11))
    assert all(0 <= i < VOCAB for ask in asks for i in ask.prompt)


async def test_the_seed_decides() -> None:
    same = {"dataset_name": "random-ids", "num_prompts": 3, "random_input_len": 5}
    assert await prompts(**same) == await prompts(**same)
    assert await prompts(**same) != await prompts(**same, seed=7)


async def test_ids_become_text_for_a_chat() -> None:
    [ask] = await prompts(
        dataset_name="random-ids", backend="sglang-oai-chat", num_prompts=1, random_input_len=3,
        random_range_ratio=1.0, prompt_suffix=" w5",
    )  # fmt: skip
    assert isinstance(ask.prompt, str)
    assert len(ids_of(ask.prompt)) == 4 and ask.prompt.endswith(" w5")


async def test_random_cuts_or_repeats_the_texts_of_a_file(tmp_path: Path) -> None:
    path = written(tmp_path / "f.json", [conversation("w1 w2 w3", "w4")], lines=False)
    asks = await prompts(
        dataset_name="random", dataset_path=path, num_prompts=30, random_input_len=7,
        random_output_len=2,
    )  # fmt: skip
    assert {len(ids_of(str(ask.prompt))) for ask in asks} == set(range(1, 8))
    longest = max((str(ask.prompt) for ask in asks), key=len)
    assert longest == "w1 w2 w3 w1 w2 w3 w1"


@pytest.mark.parametrize("name", ["sharegpt", "custom"])
async def test_conversations_give_first_turns_and_their_lengths(tmp_path: Path, name: str) -> None:
    records = [
        conversation("w1 w2", "w3 w4 w5"),
        conversation("too", "short answer"),
        conversation("w1 w2", "one", key="content"),
        conversation(" ".join(["w9"] * 50), "w1 w2"),
        {"conversations": [{"value": "alone"}]},
        conversation("w6 w7 w8", "w3 w4", key="content"),
    ]
    path = written(tmp_path / "f.json", records, lines=name == "custom")
    asks = await prompts(dataset_name=name, dataset_path=path, sharegpt_context_len=20)
    assert sorted((str(ask.prompt), ask.output_len) for ask in asks) == [
        ("w1 w2", 3), ("w6 w7 w8", 2),
    ]  # fmt: skip
    fixed = await prompts(dataset_name=name, dataset_path=path, sharegpt_output_len=9)
    assert {ask.output_len for ask in fixed} == {9} and len(fixed) == 4
    one = await prompts(dataset_name=name, dataset_path=path, num_prompts=1, tokenize_prompt=True)
    assert len(one) == 1 and isinstance(one[0].prompt, list)


async def test_openai_chats_keep_their_messages(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "w1"}]
    records = [{"messages": messages, "max_tokens": 7}, {"messages": messages}]
    path = written(tmp_path / "f.jsonl", records, lines=True)
    same = {"dataset_name": "openai", "dataset_path": path}
    asks = await prompts(**same, backend="vllm-chat", prompt_suffix="!")
    assert [ask.output_len for ask in asks] == [7, 256]
    assert asks[0].prompt == [messages[0], {"role": "user", "content": "w1!"}]
    rendered = await prompts(**same, apply_chat_template=True)
    assert rendered[0].prompt == [0, 1, 1]


async def test_groups_share_a_system_prompt() -> None:
    same = {
        "dataset_name": "generated-shared-prefix", "gsp_num_groups": 3, "gsp_prompts_per_group": 4,
        "gsp_system_prompt_len": 20, "gsp_question_len": 5, "gsp_output_len": 6,
    }  # fmt: skip
    asks = await prompts(**same, gsp_ordered=True)
    systems = [tuple(ask.prompt[:20]) for ask in asks]
    assert Counter(systems).most_common() == [(system, 4) for system in dict.fromkeys(systems)]
    assert systems == sorted(systems, key=systems.index)
    assert all(len(ask.prompt) == 25 and ask.output_len == 6 for ask in asks)
    shuffled = await prompts(**same)
    assert shuffled != asks and sorted(map(str, shuffled)) == sorted(map(str, asks))


@pytest.mark.parametrize("backend", ["sglang", "vllm-chat"])
async def test_conversations_of_a_group_have_questions_of_their_own(backend: str) -> None:
    same = {
        "dataset_name": "generated-shared-prefix", "gsp_num_groups": 2, "gsp_prompts_per_group": 3,
        "gsp_system_prompt_len": 8, "gsp_question_len": 4, "backend": backend,
    }  # fmt: skip
    asks = await prompts(**same, gsp_num_turns=3, prompt_suffix=" w1")
    assert all(len(ids_of(str(ask.prompt))) == 8 + 4 + 1 for ask in asks)
    assert all(len(ask.follow_ups) == 2 for ask in asks)
    questions = [question for ask in asks for question in ask.follow_ups]
    assert len(set(questions)) == len(questions) == 12
    assert all(len(ids_of(question)) == 4 + 1 for question in questions)
    assert not any(ask.follow_ups for ask in await prompts(**same))


async def test_rounds_of_a_trace_ask_its_prompt_again(tmp_path: Path) -> None:
    record = {"timestamp": 5, "input_length": 6, "output_length": 2, "hash_ids": [1]}
    path = written(tmp_path / "f", [record], lines=True)
    same = {"dataset_name": "mooncake", "dataset_path": path}
    [once] = await prompts(**same)
    [ask] = await prompts(**same, mooncake_num_rounds=3)
    assert isinstance(once.prompt, list) and ask.at == once.at == 0.005
    assert ids_of(str(ask.prompt)) == once.prompt
    assert ask.follow_ups == (ask.prompt, ask.prompt)


async def test_adapters_are_spread_as_told() -> None:
    same = {"dataset_name": "random-ids", "num_prompts": 3000, "random_input_len": 2}
    plain = await prompts(**same)
    assert {ask.adapter for ask in plain} == {None}

    async def counts(distribution: str | None) -> Counter[str | None]:
        asks = await prompts(
            **same, lora_name=["a", "b", "c"], lora_request_distribution=distribution
        )
        assert [ask.prompt for ask in asks] == [ask.prompt for ask in plain]
        if distribution == "distinct":
            assert [ask.adapter for ask in asks[:5]] == ["a", "b", "c", "a", "b"]
        return Counter(ask.adapter for ask in asks)

    assert await counts("distinct") == {"a": 1000, "b": 1000, "c": 1000}
    uniform = await counts("uniform")
    assert uniform == await counts(None)
    assert all(900 < uniform[name] < 1100 for name in "abc")
    skewed = await counts("skewed")
    assert skewed["a"] / skewed["b"] == pytest.approx(2**1.5, rel=0.15)
    assert skewed["a"] / skewed["c"] == pytest.approx(3**1.5, rel=0.15)


async def test_a_trace_repeats_its_blocks_at_its_times(tmp_path: Path) -> None:
    records = [
        {"timestamp": 3000, "input_length": 600, "output_length": 5, "hash_ids": [1, 3]},
        {"timestamp": 1000, "input_length": 700, "output_length": 9, "hash_ids": [1, 2]},
        {"timestamp": 9000, "input_length": 10, "output_length": 1, "hash_ids": [9]},
    ]
    path = written(tmp_path / "trace.jsonl.gz", records, lines=True)
    asks = await prompts(
        dataset_name="mooncake", dataset_path=path, num_prompts=2, mooncake_slowdown_factor=2.0
    )
    assert [(ask.at, len(ask.prompt), ask.output_len) for ask in asks] == [
        (2.0, 700, 9), (6.0, 600, 5),
    ]  # fmt: skip
    assert asks[0].prompt[:512] == asks[1].prompt[:512]
    assert asks[0].prompt[512:600] != asks[1].prompt[512:600]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("sharegpt", "{", "cannot be read"),
        ("sharegpt", "[]", "no usable prompt"),
        ("sharegpt", "[1]", "record 1 is no sharegpt record"),
        ("mooncake", '{"timestamp": 0}', "record 1 .* lacks input_length, output_length, hash_ids"),
        ("random", "[]", "no usable prompt"),
    ],
)
async def test_bad_files_are_named(tmp_path: Path, name: str, text: str, expected: str) -> None:
    path = tmp_path / "f"
    path.write_text(text)
    with pytest.raises(BenchmarkError, match=f"--dataset-path {path}.*{expected}"):
        await prompts(dataset_name=name, dataset_path=str(path))


TRACE = {"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}


@pytest.mark.parametrize(
    ("name", "record", "expected"),
    [
        ("mooncake", {**TRACE, "timestamp": "now"}, 'timestamp must be a number, got "now"'),
        ("mooncake", {**TRACE, "timestamp": float("nan")}, "timestamp must be a number, got NaN"),
        ("mooncake", {**TRACE, "timestamp": True}, "timestamp must be a number, got true"),
        ("mooncake", {**TRACE, "input_length": "5"}, 'input_length must be a whole .* got "5"'),
        ("mooncake", {**TRACE, "input_length": 0}, "input_length must be a whole number from 1"),
        ("mooncake", {**TRACE, "output_length": None}, "output_length must be .* got null"),
        ("mooncake", {**TRACE, "hash_ids": [1, -1]}, r"hash_ids must be .* from 0.* got \[1, -1\]"),
        ("mooncake", {**TRACE, "hash_ids": 7}, "hash_ids must be a list of whole numbers"),
        ("mooncake", {**TRACE, "hash_ids": []}, "hash_ids must be a list .* at least one"),
        ("openai", {"messages": "hi"}, 'messages must be a list of objects.*got "hi"'),
        ("openai", {"messages": []}, "messages must be a list of objects, at least one"),
        ("openai", {"messages": ["hi"]}, "messages must be a list of objects"),
        ("openai", {"messages": [{}], "max_tokens": "7"}, 'max_tokens must be .* null, got "7"'),
        ("openai", {"messages": [{}], "max_completion_tokens": 0}, "max_completion_tokens must be"),
        ("sharegpt", {"conversations": "hi"}, "conversations must be a list of objects or null"),
        ("custom", {"conversation": ["hi", "you"]}, "conversation must be a list of objects"),
        ("random", conversation("hi", 5), r"conversations\[1\]: value must be a text .* got 5"),
        ("sharegpt", conversation(["hi"], "you", key="content"), r"\[0\]: content must be a text"),
    ],
)  # fmt: skip
async def test_fields_of_a_wrong_kind_name_their_record(
    tmp_path: Path, name: str, record: Any, expected: str
) -> None:
    good = {**TRACE, "messages": [{"content": "w1"}], **conversation("w1 w2", "w3 w4")}
    path = written(tmp_path / "f", [good, record], lines=True)
    with pytest.raises(BenchmarkError, match=f"--dataset-path {path}: record 2.*{expected}"):
        await prompts(dataset_name=name, dataset_path=path, backend="vllm-chat")


@pytest.mark.parametrize("keep", [10, 30])
async def test_a_file_that_is_cut_short_is_named(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "f.gz"
    path.write_bytes(gzip.compress(b"some text of a trace" * 9)[:keep])
    with pytest.raises(BenchmarkError, match=f"--dataset-path {path} cannot be read"):
        await prompts(dataset_name="custom", dataset_path=str(path))


async def test_missing_file_is_named() -> None:
    with pytest.raises(BenchmarkError, match="--dataset-path /nowhere cannot be read"):
        await prompts(dataset_name="custom", dataset_path="/nowhere")
