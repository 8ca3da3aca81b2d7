"""Calls that a real model has to make, on both grammar backends: streamed and whole.

The ids in the names of tests are reports of ../shared/cases/public-reports.md.
"""

import json
from typing import Any

import jsonschema
import pytest

from tests.e2e.processes import Server, call, events

Call = tuple[str, Any]  # name, arguments

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Genève"]}},
    "required": ["city"],
    "additionalProperties": False,
}
KIND = {  # B095
    "type": "object",
    "properties": {"type": {"anyOf": [{"const": "decision"}, {"const": "note"}]}},
    "required": ["type"],
    "additionalProperties": False,
}
TREE = {
    "type": "object",
    "properties": {"left": {"$ref": "#/$defs/leaf"}, "right": {"$ref": "#/$defs/leaf"}},
    "required": ["left", "right"],
    "additionalProperties": False,
    "$defs": {"leaf": {"type": "boolean"}},
}
NUMBER = {
    "type": "object",
    "properties": {"leaf": {"$ref": "#/$defs/leaf"}},
    "required": ["leaf"],
    "additionalProperties": False,
    "$defs": {"leaf": {"type": "integer", "minimum": -20, "maximum": -7}},
}
PARAMETERS: dict[str, Any] = {"weather": CITY, "write": KIND, "tree": TREE, "number": NUMBER}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in PARAMETERS.items()
]
NAMED = {"type": "function", "function": {"name": "tree"}}


def body(choice: Any, **more: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": "What is the weather like?"}],
        "tools": TOOLS, "tool_choice": choice, "temperature": 0, "max_tokens": 200, **more,
    }  # fmt: skip


def whole(server: Server, **fields: Any) -> tuple[str, list[Call]]:
    """How the answer ended, and its calls."""
    status, reply, _ = call(f"{server.url}/v1/chat/completions", body(**fields))
    assert status == 200, reply
    choice = reply["choices"][0]
    assert choice["message"]["content"] is None
    calls = [each["function"] for each in choice["message"]["tool_calls"]]
    return choice["finish_reason"], [(c["name"], json.loads(c["arguments"])) for c in calls]


def streamed(server: Server, **fields: Any) -> tuple[str, list[Call]]:
    found: list[tuple[str, str]] = []
    ended = []
    *told, last = events(f"{server.url}/v1/chat/completions", body(**fields, stream=True))
    assert last == "[DONE]"
    for choice in (event["choices"][0] for event in told):
        assert not choice["delta"].get("content")
        for delta in choice["delta"].get("tool_calls", ()):
            if "id" in delta:
                found.append((delta["function"]["name"], ""))
            assert delta["index"] == len(found) - 1
            name, arguments = found[-1]
            found[-1] = name, arguments + delta["function"]["arguments"]
        ended += [choice["finish_reason"]] if choice["finish_reason"] else []
    [reason] = ended
    return reason, [(name, json.loads(arguments)) for name, arguments in found]


def test_b002_b028_calls_end_with_their_reason_streamed_and_whole(served: Server) -> None:
    for choice in ("required", NAMED):
        reason, calls = whole(served, choice=choice, parallel_tool_calls=False)
        assert reason == "tool_calls"
        assert len(calls) == 1
        assert streamed(served, choice=choice, parallel_tool_calls=False) == (reason, calls)
        if choice is NAMED:
            assert calls[0][0] == "tree"


@pytest.mark.parametrize("name", PARAMETERS)
def test_b095_arguments_fit_the_parameters_of_their_function(served: Server, name: str) -> None:
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": name}}]}
    for choice in (
        {"type": "function", "function": {"name": name}},
        {"type": "allowed_tools", "allowed_tools": allowed},
    ):
        for seed in range(3):
            reason, [(called, arguments)] = whole(
                served, choice=choice, parallel_tool_calls=False, temperature=1.5, seed=seed
            )
            assert (reason, called) == ("tool_calls", name)
            jsonschema.validate(arguments, PARAMETERS[name])


def test_several_calls_keep_their_schemas_apart(served: Server) -> None:
    ended = 0
    for seed in range(8):
        _, reply, _ = call(
            f"{served.url}/v1/chat/completions",
            body("required", temperature=1.5, top_p=1, seed=seed),
        )
        choice = reply["choices"][0]
        calls = [each["function"] for each in choice["message"]["tool_calls"]]
        if choice["finish_reason"] != "tool_calls":
            assert choice["finish_reason"] == "length"
            calls = calls[:-1]
        ended += choice["finish_reason"] == "tool_calls"
        for each in calls:
            jsonschema.validate(json.loads(each["arguments"]), PARAMETERS[each["name"]])
    assert ended


def test_auto_answers_with_text(served: Server) -> None:
    status, reply, _ = call(f"{served.url}/v1/chat/completions", body("auto", max_tokens=8))
    assert status == 200
    message = reply["choices"][0]["message"]
    assert message["content"] and "tool_calls" not in message


def test_what_no_backend_honours_is_refused_by_the_gateway(served: Server) -> None:
    parameters = {"type": "object", "properties": {"a": {"not": {"type": "null"}}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    status, reply, _ = call(f"{served.url}/v1/chat/completions", body("required", tools=[tool]))
    assert status == 400
    assert reply["error"]["param"] == "tools[0].function.parameters/properties/a/not"
    status, _, _ = call(
        f"{served.url}/v1/chat/completions", body("auto", tools=[tool], max_tokens=2)
    )
    assert status == 200
