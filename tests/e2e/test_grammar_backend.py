"""A grammar backend that a plugin brings constrains answers on every API."""

import threading
from collections.abc import Iterator

import pytest

from tests import plugin_packages
from tests.e2e import processes
from tests.e2e.processes import Server, call, events

DIGITS = "[0-9]{6}"
LETTERS = "[a-z]{5}"
ASK = {"text": "My favourite thing is", "sampling_params": {"max_new_tokens": 20}}


def constrained(pattern: str, **params: object) -> dict[str, object]:
    sampling = {**ASK["sampling_params"], "regex": pattern, **params}  # type: ignore[dict-item]
    return {**ASK, "sampling_params": sampling}


@pytest.fixture(scope="module")
def plugged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    wheel = plugin_packages.build_wheel("char-grammar", tmp_path_factory.mktemp("wheel"))
    site = plugin_packages.install(wheel, tmp_path_factory.mktemp("site"))
    with processes.front_door(
        tmp_path_factory.mktemp("log"), "--grammar-backend", "chars", env={"PYTHONPATH": str(site)}
    ) as server:
        yield server


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_the_answer_is_what_the_regex_allows(plugged: Server, temperature: float) -> None:
    for _ in range(2):  # compiled, then from the cache
        status, reply, _ = call(
            f"{plugged.url}/generate", constrained(DIGITS, temperature=temperature)
        )
        assert status == 200, reply
        assert len(reply["text"]) == 6
        assert reply["text"].isdigit()
        assert reply["meta_info"]["finish_reason"]["type"] == "stop"


def test_streamed_equals_whole(plugged: Server) -> None:
    whole = call(f"{plugged.url}/generate", constrained(LETTERS, temperature=0))[1]["text"]
    found = events(
        f"{plugged.url}/generate", {**constrained(LETTERS, temperature=0), "stream": True}
    )
    assert found[-2]["text"] == whole


def test_n_answers_have_states_of_their_own(plugged: Server) -> None:
    status, reply, _ = call(f"{plugged.url}/generate", constrained(DIGITS, n=3, temperature=1.5))
    assert status == 200, reply
    assert [len(answer["text"]) for answer in reply] == [6, 6, 6]
    assert all(answer["text"].isdigit() for answer in reply)


def test_a_batch_mixes_constraints_with_free_answers(plugged: Server) -> None:
    bodies = [constrained(DIGITS), constrained(LETTERS), ASK] * 4
    replies: list[str] = [""] * len(bodies)

    def ask(index: int) -> None:
        replies[index] = call(f"{plugged.url}/generate", bodies[index])[1]["text"]

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(text.isdigit() and len(text) == 6 for text in replies[0::3])
    assert all(text.isalpha() and text.islower() and len(text) == 5 for text in replies[1::3])
    assert all(replies[2::3])


def test_a_model_may_reason_before_its_constraint(plugged: Server) -> None:
    body = {**constrained(DIGITS, max_new_tokens=200, temperature=0), "require_reasoning": True}
    for _ in range(2):  # compiled, then from the cache
        status, reply, _ = call(f"{plugged.url}/generate", body)
        assert status == 200, reply
        sentence, answer = reply["text"].split(".", 1)
        assert any(letter.isalpha() for letter in sentence)
        assert answer.isdigit() and len(answer) == 6
        assert reply["meta_info"]["finish_reason"]["type"] == "stop"


def test_chat_takes_the_regex_too(plugged: Server) -> None:
    status, reply, _ = call(
        f"{plugged.url}/v1/chat/completions",
        {"messages": [{"role": "user", "content": "A number?"}], "regex": DIGITS},
    )
    assert status == 200, reply
    assert reply["choices"][0]["message"]["content"].isdigit()
    assert reply["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"regex": "(a|b)"}, ["regex cannot be honoured", "expected a regex like [0-9]{4}"]),
        ({"json_schema": "{}"}, ["json_schema cannot be honoured", "Skip unsupported key_type"]),
        ({"ebnf": 'root ::= "a"'}, ["ebnf cannot be honoured", "Skip unsupported key_type"]),
    ],
)
def test_what_the_backend_cannot_do_is_a_400(plugged: Server, params: dict, words: list) -> None:
    for _ in range(2):
        status, reply, _ = call(f"{plugged.url}/generate", {**ASK, "sampling_params": params})
        assert status == 400
        assert all(word in reply["error"]["message"] for word in words)


def test_a_long_refusal_harms_nobody(plugged: Server) -> None:
    found: list = []
    body = {"text": "count", "stream": True,
            "sampling_params": {"max_new_tokens": 60, "ignore_eos": True}}  # fmt: skip
    asking = threading.Thread(target=lambda: found.extend(events(f"{plugged.url}/generate", body)))
    asking.start()
    for length in (15_000, 100_000):
        status, reply, _ = call(
            f"{plugged.url}/generate", {**ASK, "sampling_params": {"ebnf": "y" * length}}
        )
        assert status == 400
        assert len(reply["error"]["message"]) < 2000
    asking.join(60)
    assert found[-1] == "[DONE]"
    assert found[-2]["meta_info"]["completion_tokens"] == 60
