"""Constrained answers of a real model, by both built-in backends, on both APIs.

The ids in the names of tests are reports of ../shared/cases/public-reports.md, part d.
"""

import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from tests.e2e import processes
from tests.e2e.processes import Server, call, events

HOT = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def asked(
    server: Server, text: str = "Answer:", n: int = 1, **params: Any
) -> list[tuple[str, str]]:
    """(how it ended, text) of `n` answers of `/generate`."""
    sampling = {"max_new_tokens": 64, **HOT, "n": n, **params}
    status, reply, _ = call(f"{server.url}/generate", {"text": text, "sampling_params": sampling})
    assert status == 200, reply
    answers = reply if isinstance(reply, list) else [reply]
    assert len(answers) == n
    return [(a["meta_info"]["finish_reason"]["type"], a["text"]) for a in answers]


def refused(server: Server, path: str = "/generate", **body: Any) -> str:
    """The sentence of a 400."""
    status, reply, _ = call(f"{server.url}{path}", body)
    assert status == 400, reply
    return str(reply["error"]["message"])


def documents(server: Server, schema: Any, n: int = 20, **params: Any) -> list[Any]:
    """Sampled answers; those that ended parse and satisfy the schema, and some did end."""
    checker = jsonschema.Draft202012Validator(schema)
    found = []
    for ended, text in asked(server, n=n, json_schema=json.dumps(schema), **params):
        if ended == "stop":
            found.append(json.loads(text))
            assert checker.is_valid(found[-1]), (schema, text)
        else:
            assert ended == "length", ended
    assert found
    return found


def chat(server: Server, **body: Any) -> Any:
    messages = body.pop("messages", [{"role": "user", "content": "Write a poem."}])
    status, reply, _ = call(
        f"{server.url}/v1/chat/completions", {"messages": messages, "max_tokens": 64, **body}
    )
    assert status == 200, reply
    return reply["choices"][0]


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize("ebnf", ['root = "a"', 'root ::= ("a" | "b"', "", 'x ::= "a"'])
def test_b078_a_grammar_that_does_not_parse_is_refused(served: Server, ebnf: str) -> None:
    messages = [{"role": "user", "content": "Write a poem"}]
    if not ebnf:  # asks for nothing
        assert chat(served, messages=messages, ebnf=ebnf)["message"]["content"]
        return
    message = refused(served, "/v1/chat/completions", messages=messages, ebnf=ebnf)
    assert "ebnf" in message


@pytest.mark.parametrize("pattern", ["(?=a)b", r"(a)\1", "(", "[z-a]"])
def test_b086_what_no_automaton_can_do_is_refused(served: Server, pattern: str) -> None:
    assert "regex" in refused(
        served, text="x", sampling_params={"regex": pattern, "max_new_tokens": 8}
    )


def test_unsupported_keywords_are_named_with_their_place(served: Server) -> None:
    schema = {"type": "object", "properties": {"a": {"if": {"type": "string"}, "then": {}}}}
    message = refused(
        served, text="x", sampling_params={"json_schema": json.dumps(schema), "max_new_tokens": 8}
    )
    assert "/properties/a/if" in message
    format_ = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    messages = [{"role": "user", "content": "x"}]
    message = refused(served, "/v1/chat/completions", messages=messages, response_format=format_)
    assert "/properties/a/if" in message


@pytest.mark.parametrize(
    "schema",
    ["{", "[]", '"x"', '{"type":"strng"}', '{"$ref":"#/nowhere"}', '{"$ref":"https://x.test/y"}',
     "[" * 100_000, '{"a":' * 100_000, '{"enum":[]}', '{"minLength":-1}'],
)  # fmt: skip
def test_wrong_schemas_cost_only_their_request(served: Server, schema: str) -> None:
    refused(served, text="x", sampling_params={"json_schema": schema, "max_new_tokens": 8})
    assert asked(served, regex="[0-9]{3}")[0][0] == "stop"


def test_b090_grammars_with_left_recursion_or_empty_loops(served: Server) -> None:
    for ebnf, wanted in [
        ('root ::= root "a" | "a"', "a+"),
        ('root ::= x*\nx ::= "" | "b"', "b*"),
        ('root ::= x\nx ::= y "1" | "1"\ny ::= z\nz ::= x "2" | "2"', "[12]+"),
    ]:
        sampling = {"ebnf": ebnf, "max_new_tokens": 16, **HOT}
        status, reply, _ = call(
            f"{served.url}/generate", {"text": "x", "sampling_params": sampling}
        )
        assert status in (200, 400), reply
        if status == 200:
            assert re.fullmatch(wanted, reply["text"])


# ---------------------------------------------------------------- what is answered


def test_b080_json_mode_is_an_object(served: Server) -> None:
    body = {
        "messages": [{"role": "user", "content": "Write a poem."}], "temperature": 1, "n": 10,
        "response_format": {"type": "json_object"}, "max_tokens": 200,
    }  # fmt: skip
    status, reply, _ = call(f"{served.url}/v1/chat/completions", body)
    assert status == 200, reply
    assert len(reply["choices"]) == 10
    for choice in reply["choices"]:
        text = choice["message"]["content"]
        assert text.lstrip().startswith("{")
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize(
    "pattern", [r"^\d{4}-\d{2}$", r"[a-f]{3,5}(x|yz)?", r"(ab|cd)+e", r"\w+@\w+\.(com|org)"]
)
def test_b086_the_whole_answer_matches_the_pattern(served: Server, pattern: str) -> None:
    for ended, text in asked(served, n=5, regex=pattern):
        assert ended != "stop" or re.fullmatch(pattern, text), text


def test_b086_a_schema_s_pattern_may_match_anywhere(served: Server) -> None:
    found = documents(served, {"type": "string", "pattern": "[ab]{2}@[ab]{2}", "maxLength": 12})
    assert all(re.search("[ab]{2}@[ab]{2}", text) for text in found)


@pytest.mark.parametrize("additional", [None, True, False, {"type": "integer"}])
def test_b088_additional_properties(served: Server, additional: Any) -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"kind": {"enum": ["x", "y"]}, "n": {"type": "integer"}},
        "required": ["kind"],
    }
    if additional is not None:
        schema["additionalProperties"] = additional
    for document in documents(served, schema):
        assert additional is not False or set(document) <= {"kind", "n"}


@pytest.mark.parametrize(("least", "most"), [(2, 2), (0, 0), (3, 5)])
def test_b098_lengths_of_arrays(served: Server, least: int, most: int) -> None:
    items = {"type": "string", "maxLength": 6}
    documents(served, {"type": "array", "items": items, "minItems": least, "maxItems": most})


@pytest.mark.parametrize(
    "bounds",
    [{"minimum": -20, "maximum": -7}, {"minimum": -3, "maximum": 12}, {"minimum": 0, "maximum": 0},
     {"minimum": 95, "maximum": 1005}, {"exclusiveMinimum": -4, "exclusiveMaximum": 4},
     {"minimum": 17}, {"maximum": -17}],
)  # fmt: skip
def test_b100_bounds_of_integers(served: Server, bounds: dict[str, int]) -> None:
    schema = {"type": "integer", **bounds}
    for ended, text in asked(
        served, n=20, temperature=1.5, json_schema=json.dumps(schema), max_new_tokens=24
    ):
        if ended == "stop":
            assert re.fullmatch(r"\s*(0|-?[1-9][0-9]*)\s*", text), text
            assert jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))


def test_b096_a_format_goes_with_tools_that_are_not_forced(served: Server) -> None:
    tools = [{"type": "function", "function": {"name": "find", "parameters": PERSON}}]
    format_ = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    for more in [{}, {"tools": tools, "tool_choice": "none"}, {"tools": tools}]:
        choice = chat(served, response_format=format_, **more)
        assert choice["finish_reason"] in ("stop", "length")
        if choice["finish_reason"] == "stop":
            jsonschema.validate(json.loads(choice["message"]["content"]), PERSON)
    messages = [{"role": "user", "content": "x"}]
    message = refused(
        served, "/v1/chat/completions", messages=messages, response_format=format_, regex="a"
    )
    assert "exclude each other" in message


def test_b095_a_forced_call_s_constants_have_no_quotes_inside(served: Server) -> None:
    parameters = {
        "type": "object",
        "properties": {"type": {"anyOf": [{"const": "decision"}, {"const": "note"}]}},
        "required": ["type"],
        "additionalProperties": False,
    }
    tools = [{"type": "function", "function": {"name": "remember", "parameters": parameters}}]
    named = {"type": "function", "function": {"name": "remember"}}
    for choice_of in ("required", named):
        choice = chat(
            served, tools=tools, tool_choice=choice_of, parallel_tool_calls=False, max_tokens=200
        )
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] is None
        for made in choice["message"]["tool_calls"]:
            assert made["function"]["name"] == "remember"
            assert json.loads(made["function"]["arguments"])["type"] in ("decision", "note")


def test_white_space_cannot_loop(served: Server) -> None:
    """A model that likes nothing better than line breaks gets to the end all the same."""
    schema = json.dumps({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"],
                         "additionalProperties": False})  # fmt: skip
    bias = {str(token): 50 for token in white_space_ids(served)}
    for ended, text in asked(
        served, n=4, json_schema=schema, logit_bias=bias, max_new_tokens=400, temperature=0
    ):
        assert ended == "stop"
        assert json.loads(text) == {"a": 1}


def white_space_ids(server: Server) -> list[int]:
    ids = []
    for text in (" ", "\n", "\n\n", "\t", "  "):
        _, reply, _ = call(f"{server.url}/tokenize", {"prompt": text, "add_special_tokens": False})
        ids += reply["tokens"]
    return sorted(set(ids))


# ---------------------------------------------------------------- constraints with other options


def test_streamed_equals_whole(served: Server) -> None:
    sampling = {"json_schema": json.dumps(PERSON), "temperature": 0, "max_new_tokens": 48}
    body = {"text": "A person:", "sampling_params": sampling}
    whole = call(f"{served.url}/generate", body)[1]["text"]
    assert events(f"{served.url}/generate", {**body, "stream": True})[-2]["text"] == whole


def test_stops_logprobs_penalties_bias_and_least_lengths_hold_together(served: Server) -> None:
    sampling = {
        "regex": "[a-f]{4,9};[0-9]+", "stop": [";"], "max_new_tokens": 32, "min_new_tokens": 3,
        "frequency_penalty": 0.5, "repetition_penalty": 1.1, "logit_bias": {"5": 3.0}, "n": 3,
        **HOT,
    }  # fmt: skip
    body = {"text": "x", "sampling_params": sampling, "return_logprob": True}
    status, reply, _ = call(f"{served.url}/generate", body)
    assert status == 200, reply
    for answer in reply:
        meta = answer["meta_info"]
        assert len(meta["output_token_logprobs"]) == meta["completion_tokens"]
        assert re.fullmatch("[a-f]{4,9}", answer["text"])
        assert meta["finish_reason"] == {"type": "stop", "matched": ";"}


def test_a_short_constraint_ends_before_the_least_length(served: Server) -> None:
    [(ended, text)] = asked(served, regex="[0-9]{3}", min_new_tokens=20)
    assert ended == "stop"
    assert re.fullmatch("[0-9]{3}", text)


def test_a_hundred_answers_of_one_grammar_share_no_state(served: Server) -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 6}
    assert len(documents(served, schema, n=100, max_new_tokens=80)) > 50


def test_five_streams_go_on_beside_constraints_that_fail(served: Server) -> None:
    """B093: bad ones, and one that takes its time."""
    stop_words = {"ignore_eos": True, "max_new_tokens": 60, "temperature": 0}
    body = {"text": "The sea is", "stream": True, "sampling_params": stop_words}
    alone = events(f"{served.url}/generate", body)[-2]["text"]
    texts: list[str] = []

    def stream() -> None:
        texts.append(events(f"{served.url}/generate", body)[-2]["text"])

    threads = [threading.Thread(target=stream) for _ in range(5)]
    for thread in threads:
        thread.start()
    refused(served, text="x", sampling_params={"ebnf": 'root ::= ("a"', "max_new_tokens": 8})
    status, reply, _ = call(f"{served.url}/generate", {"text": "x", "sampling_params": {
        "regex": "(a{1,1000}){1,1000}", "max_new_tokens": 4}})  # fmt: skip
    assert status in (200, 400), reply
    for thread in threads:
        thread.join(120)
    assert texts == [alone] * 5


@pytest.fixture(scope="module")
def switched_off(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("log")
    with processes.front_door(folder, "--grammar-backend", "none") as server:
        yield server


@pytest.mark.parametrize(
    "constraint",
    [{"regex": "[0-9]"}, {"ebnf": 'root ::= "a"'}, {"response_format": {"type": "json_object"}},
     {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": PERSON}}},
     {"tool_choice": "required", "tools": [
         {"type": "function", "function": {"name": "find", "parameters": PERSON}}]}],
)  # fmt: skip
def test_b091_with_the_backend_switched_off_a_constraint_is_refused(
    switched_off: Server, constraint: dict[str, Any]
) -> None:
    messages = [{"role": "user", "content": "x"}]
    message = refused(switched_off, "/v1/chat/completions", messages=messages, **constraint)
    assert "is not served here" in message
    assert "--grammar-backend" in message
    assert chat(switched_off, max_tokens=4)["message"]["content"]
