"""Each keyword of JSON Schema is honoured fully, or refused with its place."""

import datetime
import json
import re
import time
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from sglang.srt.constrained.base_grammar_backend import BaseGrammarBackend
from sglang.srt.constrained.json_formats import PATTERNS
from sglang.srt.constrained.json_schema_rules import GUIDANCE_RULES
from sglang.srt.constrained.xgrammar_schema import XGRAMMAR_RULES
from tests.unit.srt.constrained.backends import NAMES, accepts, backend_of, why_not

RULES = {"llguidance": GUIDANCE_RULES, "xgrammar": XGRAMMAR_RULES}
BOTH = frozenset(NAMES)


@pytest.fixture(scope="module", params=NAMES)
def named(request: pytest.FixtureRequest) -> Iterator[tuple[str, BaseGrammarBackend]]:
    with backend_of(request.param) as backend:
        yield request.param, backend


def objects(**keywords: Any) -> dict[str, Any]:
    return {"type": "object", **keywords}


A_INT = {"a": {"type": "integer"}}
TREE = objects(
    properties={"v": {"type": "integer"}, "c": {"$ref": "#/$defs/n"}}, required=["v"],
    additionalProperties=False,
)  # fmt: skip

# Schema, texts of which some are valid, and who refuses it.
CASES: list[tuple[Any, list[str], frozenset[str]]] = [
    (True, ["1", '{"a":1}', "01", ""], frozenset()),
    ({}, ["1", '"x"', "[1]", "nul"], frozenset()),
    ({"type": ["string", "null"]}, ['"a"', "null", "1"], frozenset()),
    ({"type": "integer"}, ["1", "01", "-5", "1.5", "--1"], frozenset()),
    ({"type": "number"}, ["1", "1.5", "1e5", "-0.5", "01", ".5", "1."], frozenset()),
    ({"type": "boolean"}, ["true", "false", "null"], frozenset()),
    ({"title": "x", "description": "y", "default": 3, "examples": [1], "deprecated": True,
      "x-a": {"type": 1}, "_format": "z", "type": "string"}, ['"a"', "1"], frozenset()),
    # Objects
    (objects(properties=A_INT), ["{}", '{"a":1}', '{"a":"x"}', '{"b":"x"}', "1"], frozenset()),
    (objects(properties=A_INT, additionalProperties=True),
     ["{}", '{"a":1}', '{"a":"x"}', '{"b":"x"}'], frozenset()),
    (objects(properties=A_INT, additionalProperties=False),
     ["{}", '{"a":1}', '{"a":"x"}', '{"b":"x"}'], frozenset()),
    (objects(properties={"a": {"type": "string"}}, additionalProperties={"type": "integer"}),
     ['{"a":"s"}', '{"a":1}', '{"b":1}', '{"b":"x"}', '{"a":"s","b":1}'], frozenset()),
    (objects(required=["z"]), ["{}", '{"z":1}', '{"y":1}'], frozenset()),
    (objects(properties=A_INT, required=["z"]),
     ['{"a":1}', '{"z":2}', '{"a":1,"z":2}'], frozenset()),
    (objects(required=["z"], additionalProperties={"type": "integer"}),
     ["{}", '{"z":1}', '{"z":"x"}', '{"y":1}'], frozenset()),
    (objects(properties={"a": {}, "b": False}, additionalProperties=False),
     ["{}", '{"a":1}', '{"b":1}'], frozenset()),
    (objects(properties={"a": {}, "b": False}), ["{}", '{"a":1}', '{"b":1}'], {"xgrammar"}),
    (objects(patternProperties={"^a": {"type": "integer"}}, additionalProperties=False),
     ["{}", '{"a":1}', '{"ab":1}', '{"ab":"x"}', '{"b":1}', '{"ba":1}'], frozenset()),
    (objects(patternProperties={"a": {"type": "integer"}}, additionalProperties=False),
     ['{"ba":1}', '{"ba":"x"}', '{"b":1}'], frozenset()),
    (objects(properties={"ab": {"type": "string"}}, patternProperties={"^a": {"minLength": 2}}),
     ['{"ab":"xx"}', '{"ab":"x"}', '{"ac":"x"}', '{"b":"x"}'], {"xgrammar"}),
    (objects(propertyNames={"pattern": "^[a-z]+$"}), ["{}", '{"a":1}', '{"A":1}', '{"a1":1}'],
     {"llguidance"}),
    (objects(propertyNames={"maxLength": 2}), ['{"ab":1}', '{"abc":1}'], {"llguidance"}),
    (objects(propertyNames={"enum": ["a"]}), ['{"a":1}', '{"b":1}'], {"llguidance"}),
    (objects(minProperties=1), ["{}", '{"a":1}', '{"a":1,"b":2}'], frozenset()),
    (objects(maxProperties=1), ["{}", '{"a":1}', '{"a":1,"b":2}'], frozenset()),
    (objects(properties={"a": {}, "b": {}}, minProperties=1, additionalProperties=False),
     ["{}", '{"a":1}', '{"b":1}', '{"a":1,"b":1}'], frozenset()),
    # Arrays
    ({"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2},
     ["[]", '["a"]', '["a","b"]', '["a","b","c"]', '["a",1]'], frozenset()),
    ({"type": "array", "minItems": 0, "maxItems": 0}, ["[]", "[1]"], frozenset()),
    ({"type": "array", "minItems": 3, "maxItems": 5},
     ["[1,2]", "[1,2,3]", "[1,2,3,4,5]", "[1,2,3,4,5,6]"], frozenset()),
    ({"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}]},
     ["[]", '["a"]', '["a",1]', '["a",1,null]', "[1]", '["a","b"]'], frozenset()),
    ({"type": "array", "prefixItems": [{"type": "string"}], "items": False},
     ["[]", '["a"]', '["a",1]', "[1]"], frozenset()),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "type": "array",
      "items": [{"type": "string"}, {"type": "integer"}], "additionalItems": False},
     ["[]", '["a"]', '["a",1]', '["a",1,null]', "[1]"], frozenset()),
    ({"type": "array", "uniqueItems": False}, ["[1,1]"], frozenset()),
    ({"type": "array", "uniqueItems": True, "maxItems": 1}, ["[]", "[1]", "[1,1]"], frozenset()),
    # Strings
    ({"type": "string", "minLength": 2, "maxLength": 3},
     ['"a"', '"ab"', '"abc"', '"abcd"', '"éé"', '"😀😀😀"', '"😀😀😀😀"'], frozenset()),
    ({"type": "string", "pattern": "[a-z]+"}, ['"ab"', '"A"', '"1a1"', '""'], frozenset()),
    ({"type": "string", "pattern": "^ab"}, ['"ab"', '"abc"', '"cab"'], frozenset()),
    ({"type": "string", "pattern": "^a|b$"}, ['"ax"', '"xb"', '"xbx"', '"xa"'], frozenset()),
    ({"type": "string", "pattern": r"^\d{4}-\d{2}$"}, ['"2020-12"', '"2020-1"'], frozenset()),
    ({"type": "string", "pattern": r"\w+@\w+"}, ['"x a@b y"', '"a@"'], frozenset()),
    ({"type": "string", "pattern": "^.$"}, ['"a"', '"ab"', '"é"', '"""', '"\\"'], frozenset()),
    ({"type": "string", "pattern": "^[^a]{1,2}$"}, ['"b"', '"ba"', '"""', '"\\"'], frozenset()),
    ({"type": "string", "pattern": '^"$'}, ['"\\""', '"a"', '"""'], {"xgrammar"}),
    ({"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 3},
     ['"a"', '"ab"', '"abcd"', '"A"'], frozenset()),
    ({"type": "string", "pattern": "^(a|bc)+$", "maxLength": 3},
     ['"a"', '"aabc"', '"aaaa"'], frozenset()),
    ({"type": "string", "pattern": "^(a|bc)+$", "minLength": 4, "maxLength": 4},
     ['"bcbc"', '"aaa"', '"aabcb"'], {"xgrammar"}),
    ({"type": "string", "format": "date", "minLength": 3}, ['"2020-01-01"'], frozenset()),
    ({"type": "string", "format": "phone"}, ['"x"'], frozenset()),
    # Numbers
    *[({"type": "integer", **bounds}, [str(n) for n in (-21, -20, -13, -7, -6, -4, -3, -2, 0, 5, 11,
       12, 13, 95, 1005, 1006)] + ["05", "-07"], frozenset())
      for bounds in ({"minimum": -20, "maximum": -7}, {"minimum": -3, "maximum": 12},
                     {"minimum": 0, "maximum": 0}, {"minimum": 95, "maximum": 1005},
                     {"exclusiveMinimum": -3, "exclusiveMaximum": 12}, {"minimum": 12},
                     {"maximum": -6}, {"exclusiveMinimum": 0.5, "maximum": 11.5})],
    ({"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer", "minimum": 1,
      "exclusiveMinimum": True}, ["0", "1", "2"], frozenset()),
    ({"type": "number", "minimum": -1.5, "exclusiveMaximum": 2.5},
     ["-1.6", "-1.5", "0", "2", "2.4", "2.5", "2.51", "-2", "1e3"], frozenset()),
    ({"type": "integer", "multipleOf": 5}, ["4", "5", "0", "-5", "10", "11"], frozenset()),
    ({"type": "integer", "multipleOf": 5, "minimum": 3, "maximum": 12},
     ["0", "4", "5", "10", "15"], {"xgrammar"}),
    ({"type": "number", "multipleOf": 0.5}, ["0.5", "0.25", "4", "-1.5"], {"xgrammar"}),
    # Values
    ({"enum": ["a", 1, None, {"x": [1, "q"]}]}, ['"a"', "1", "null", '{"x":[1,"q"]}', "2"],
     frozenset()),
    ({"type": "string", "enum": ["a", 1]}, ['"a"', "1"], frozenset()),
    ({"const": 'a"b\\c/é'}, [json.dumps('a"b\\c/é', ensure_ascii=False), '"a"'], frozenset()),
    ({"const": {"b": 1, "a": [1, 2]}}, ['{"b":1,"a":[1,2]}', '{"b":1}'], frozenset()),
    # Combinations
    ({"anyOf": [{"const": "decision"}, {"const": "note"}]},
     ['"decision"', '"note"', '"x"', '"\\"note\\""'], frozenset()),
    (objects(properties=A_INT, required=["a"], anyOf=[{"required": ["b"]}, {"required": ["c"]}]),
     ['{"a":1}', '{"a":1,"b":1}', '{"a":1,"c":1}', '{"b":1}'], {"xgrammar"}),
    ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, ['"a"', "1", "null"], frozenset()),
    ({"oneOf": [objects(properties={"k": {"const": k}}, required=["k"]) for k in "ab"]},
     ['{"k":"a"}', '{"k":"b"}', '{"k":"c"}', "{}"], frozenset()),
    ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, ["1.5", "1"], BOTH),
    ({"oneOf": [objects(properties={"k": {"const": k}}) for k in "ab"]}, ["{}"], BOTH),
    ({"oneOf": [{"maxLength": 2}, {"minLength": 3}]}, ["1"], BOTH),
    ({"allOf": [{"type": "integer"}]}, ["1", '"x"'], frozenset()),
    ({"allOf": [objects(properties=A_INT, required=["a"]),
                objects(properties={"b": {"type": "string"}}, required=["b"])]},
     ['{"a":1}', '{"a":1,"b":"x"}', '{"b":"x"}'], {"xgrammar"}),
    ({"$defs": {"x": {"type": "integer"}}, "$ref": "#/$defs/x", "minimum": 5}, ["5", "4"],
     {"xgrammar"}),
    ({"$schema": "http://json-schema.org/draft-07/schema#",
      "definitions": {"x": {"type": "integer"}}, "properties": {"a": {
          "$ref": "#/definitions/x", "minimum": 5}}}, ['{"a":4}', '{"a":"x"}'], frozenset()),
    ({"$defs": {"n": TREE}, "$ref": "#/$defs/n"},
     ['{"v":1}', '{"v":1,"c":{"v":2}}', '{"v":1,"c":{}}'], frozenset()),
    (objects(properties={"c": {"$ref": "#"}}, additionalProperties=False),
     ["{}", '{"c":{}}', '{"c":{"c":1}}'], frozenset()),
    ({"$defs": {"a/b~c d": {"type": "integer"}}, "$ref": "#/$defs/a~1b~0c%20d"}, ["1", '"x"'],
     frozenset()),
    ({"$id": "https://a.b/c", "$defs": {"x": {"type": "integer"}},
      "$ref": "https://a.b/c#/$defs/x"}, ["1", '"x"'], frozenset()),
]  # fmt: skip
# What is valid and never written: `-0` and numbers with exponents beside bounds, and the like.
UNWRITTEN = {"1e3", '{"z":2}'}


@pytest.mark.parametrize(
    ("schema", "texts", "refusing"), CASES, ids=[json.dumps(case[0])[:60] for case in CASES]
)
def test_what_is_honoured_is_honoured_fully(
    named: tuple[str, BaseGrammarBackend], schema: Any, texts: list[str], refusing: frozenset[str]
) -> None:
    name, backend = named
    why = why_not(json.dumps(schema), RULES[name])
    assert (why is not None) == (name in refusing), why
    if why is not None:
        return
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    validator = kind(schema)
    grammar = backend.compile_grammar("json", json.dumps(schema))
    expected = [text for text in texts if text not in UNWRITTEN and is_valid(validator, text)]
    accepted = [text for text in texts if accepts(grammar, text)]
    assert [text for text in accepted if text not in UNWRITTEN] == expected
    assert all(is_valid(validator, text) for text in accepted)


@pytest.mark.parametrize("bounds", [{}, {"minimum": -3, "maximum": 12}, {"maximum": 0}])
def test_no_integer_is_a_negative_zero(
    named: tuple[str, BaseGrammarBackend], bounds: dict[str, int]
) -> None:
    grammar = named[1].compile_grammar("json", json.dumps({"type": "integer", **bounds}))
    texts = ["-0", "0", "-2", "-20", "00", "-01"]
    expected = ["0", "-2"] if "minimum" in bounds else ["0", "-2", "-20"]
    assert [text for text in texts if accepts(grammar, text)] == expected


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("date", ["2020-02-29", "2000-02-29", "2020-12-31", "0001-01-01"],
         ["2021-02-29", "1900-02-29", "2020-02-31", "2020-04-31", "2020-13-01", "0000-01-01"]),
        ("time", ["12:00:00Z", "23:59:59.5+01:00"], ["25:00:00Z", "12:60:00Z", "12:00:00"]),
        ("date-time", ["2020-02-29T00:00:00Z"], ["2021-02-29T00:00:00Z", "2020-01-01"]),
        ("uuid", ["123e4567-e89b-12d3-a456-426614174000"], ["123e4567", "123e4567-e89b"]),
        ("ipv4", ["1.2.3.4", "255.0.10.100"], ["256.1.1.1", "1.2.3", "01.2.3.4"]),
        ("email", ["a.b@c-d.org"], ["ab", "@b.c", "a@b.", "a@-b.c"]),
        ("hostname", ["a", "a-b.c"], ["-a", "a-.b", "a..b"]),
        ("uri", ["https://a.b/c%20d?x=1#y"], ["a", "https://", "http://a b"]),
    ],
)  # fmt: skip
def test_formats(
    named: tuple[str, BaseGrammarBackend], name: str, right: list[str], wrong: list[str]
) -> None:
    schema = json.dumps({"type": "string", "format": name})
    grammar = named[1].compile_grammar("json", schema)
    assert [text for text in right + wrong if accepts(grammar, json.dumps(text))] == right


def test_dates_are_those_of_the_calendar() -> None:
    pattern = re.compile(re.sub(r"\\u\{(\w+)\}", r"\\x\1", PATTERNS["date"]))
    for year in [*range(0, 40), 1900, *range(1990, 2110), 2400, 9999]:
        for month in range(14):
            for day in range(33):
                text = f"{year:04}-{month:02}-{day:02}"
                try:
                    is_date = bool(datetime.date(year, month, day))
                except ValueError:
                    is_date = False
                assert bool(pattern.fullmatch(text)) <= is_date, text
                assert year < 1000 or bool(pattern.fullmatch(text)) == is_date, text


def is_valid(validator: Any, text: str) -> bool:
    try:
        return bool(validator.is_valid(json.loads(text)))
    except json.JSONDecodeError:
        return False


def deep(levels: int) -> str:
    return '{"items":' * levels + "{}" + "}" * levels


@pytest.mark.parametrize(
    ("schema", "pointer", "what"),
    [
        ("{", "/", "not JSON"),
        ("[]", "/", "an object or a boolean"),
        ("false", "/", "allows no value"),
        ('{"minimum": NaN}', "/", "NaN"),
        ('{"type": "strng"}', "/type", "one of null, boolean"),
        ('{"type": []}', "/type", "one of"),
        ('{"minLength": -1}', "/minLength", "whole number"),
        ('{"minLength": 1e999}', "/minLength", "whole number"),
        ('{"maxItems": 1.5}', "/maxItems", "whole number"),
        ('{"required": "a"}', "/required", "list of strings"),
        ('{"enum": []}', "/enum", "at least one value"),
        ('{"anyOf": []}', "/anyOf", "at least one schema"),
        ('{"properties": {"a": 1}}', "/properties", "schemas"),
        ('{"pattern": 1}', "/pattern", "a string"),
        ('{"multipleOf": 0}', "/multipleOf", "above 0"),
        ('{"multipleOf": 0.01}', "/multipleOf", "floating point"),
        ('{"uniqueItems": 1}', "/uniqueItems", "true or false"),
        ('{"minimum": 5, "maximum": 3}', "/minimum", "satisfy both"),
        ('{"minLength": 5, "maxLength": 3}', "/minLength", "satisfy both"),
        ('{"maximum": 1e30}', "/maximum", "exactly"),
        ('{"items": {"properties": {"a/b": {"not": {}}}}}', "/items/properties/a~1b/not", "`not`"),
        ('{"if": {}, "then": {}}', "/if", "`anyOf`"),
        ('{"dependentRequired": {"a": ["b"]}}', "/dependentRequired", "`required`"),
        ('{"dependencies": {"a": ["b"]}}', "/dependencies", "`required`"),
        ('{"dependentSchemas": {"a": {}}}', "/dependentSchemas", "`anyOf`"),
        ('{"contains": {}}', "/contains", "`prefixItems`"),
        ('{"uniqueItems": true}', "/uniqueItems", "`enum`"),
        ('{"unevaluatedProperties": false}', "/unevaluatedProperties", "additionalProperties"),
        ('{"unevaluatedItems": false}', "/unevaluatedItems", "prefixItems"),
        ('{"$dynamicRef": "#x"}', "/$dynamicRef", "`$ref`"),
        ('{"oneOf": [{}, {}]}', "/oneOf", "`anyOf`"),
        ('{"format": "idn-email"}', "/format", "date-time"),
        ('{"pattern": "(?=a)b"}', "/pattern", "ahead"),
        ('{"patternProperties": {"(a": {}}}', "/patternProperties/(a", "unclosed"),
        (r'{"patternProperties": {"^\\d$": {"type": "integer"}, "^[0-9]$": {}}}',
         "/patternProperties/^[0-9]$", "the same names"),
        ('{"properties": {"y": {"$ref": "#/$defs/c"}, "x": {"$ref": "#/$defs/c/oneOf/0"}}, '
         '"$defs": {"c": {"oneOf": [{"type": "integer"}, {"type": "string"}]}}}',
         "/properties/x/$ref", "into `$defs`"),
        ('{"$ref": "https://a.b/c"}', "/$ref", "outside the schema"),
        ('{"$ref": "#/$defs/x"}', "/$ref", "points to nothing"),
        ('{"$ref": "#x"}', "/$ref", "no JSON pointer"),
        ('{"items": {"$id": "x"}, "contentSchema": 1, "$ref": "#/items"}', "/items/$id", "`$ref`"),
        ('{"$ref": "#"}', "/", "without an end"),
        ('{"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, '
         '"properties": {"x": {"$ref": "#/$defs/a"}}}', "/properties/x", "without an end"),
        ('{"type": "object", "properties": {"c": {"$ref": "#"}}, "required": ["c"]}', "/",
         "without an end"),
        ('{"type": "array", "items": {"$ref": "#"}, "minItems": 1}', "/", "without an end"),
        ('{"anyOf": [{"allOf": [{"$ref": "#"}]}]}', "/", "without an end"),
        (deep(100_000), "/", "too deep"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", NAMES)
def test_refusals_name_the_place_and_what_to_do(
    name: str, schema: str, pointer: str, what: str
) -> None:
    why = why_not(schema, RULES[name])
    assert why is not None
    assert f"at `{pointer}` of the schema" in why
    assert what in why


def test_references_do_not_lead_to_what_moved_up_in_a_list() -> None:
    schema = {
        "$defs": {"c": {"anyOf": [False, {"type": "integer"}, {"type": "string"}]}},
        "properties": {"y": {"$ref": "#/$defs/c"}, "x": {"$ref": "#/$defs/c/anyOf/1"}},
    }
    assert why_not(json.dumps(schema), GUIDANCE_RULES) is None
    why = why_not(json.dumps(schema), XGRAMMAR_RULES) or ""
    assert "at `/properties/x/$ref`" in why and "into `$defs`" in why


@pytest.mark.parametrize("name", NAMES)
def test_a_choice_ends_recursion(name: str) -> None:
    ends = '{"type": "array", "items": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}, "minItems": 1}'
    assert why_not(ends, RULES[name]) is None


@pytest.mark.parametrize("name", NAMES)
def test_long_schemas_take_linear_time(name: str) -> None:
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(5000)}
    schema = {"$defs": {**chain, "d5000": {"type": "integer"}}, "$ref": "#/$defs/d0"}
    assert why_not(json.dumps(schema), RULES[name]) is None
    many = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(5000)}}
    assert why_not(json.dumps({**many, "required": list(many["properties"])}), RULES[name]) is None


def one_of(*options: Any) -> dict[str, Any]:
    return {"oneOf": list(options)}


def test_values_are_told_apart_in_linear_time() -> None:
    schema = one_of({"enum": list(range(8000))}, {"enum": list(range(-8000, 0))})
    begin = time.process_time()
    assert why_not(json.dumps(schema), GUIDANCE_RULES) is None
    assert time.process_time() - begin < 2  # pair by pair it takes minutes
    schema["oneOf"][1]["enum"].append(7.0)
    assert "`oneOf`" in (why_not(json.dumps(schema), GUIDANCE_RULES) or "")


def test_proofs_that_take_too_many_steps_together_are_given_up() -> None:
    halves = [{"anyOf": [{"const": 2 * i + odd} for i in range(60)]} for odd in (0, 1)]
    choice = one_of({"$ref": "#/$defs/even"}, {"$ref": "#/$defs/odd"})

    def why(num_choices: int) -> str | None:
        schema = {
            "$defs": {"even": halves[0], "odd": halves[1]},
            "properties": {f"p{i}": choice for i in range(num_choices)},
        }
        return why_not(json.dumps(schema), GUIDANCE_RULES)

    assert why(3) is None
    begin = time.process_time()
    assert "at `/properties/p" in (why(400) or "")
    assert time.process_time() - begin < 2  # all of them would take half a minute


def test_what_is_unreachable_is_not_judged() -> None:
    assert why_not('{"$defs": {"x": {"not": {}}}, "type": "integer"}', GUIDANCE_RULES) is None
