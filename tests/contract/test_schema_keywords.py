"""The gateway refuses the keywords of JSON Schema that both grammar backends refuse, no others."""

import json
import re
from typing import Any

import pytest

from sglang.srt.constrained.json_schema_rules import GUIDANCE_RULES, SchemaRules
from sglang.srt.constrained.json_schema_values import NEVER
from sglang.srt.constrained.xgrammar_schema import XGRAMMAR_RULES
from tests.architecture.budgets import ROOT
from tests.unit.srt.constrained.backends import why_not

TABLE = ROOT / "gateway/api/src/constraint/honour.rs"
ENTRY = re.compile(r'\(\s*"([^"]+)",\s*"([^"]+)",?\s*\)')

OBJECT = {"type": "object", "properties": {"a": {"type": "string"}}}
ARRAY = {"type": "array", "items": {"type": "string"}}
IN_USE: dict[str, dict[str, Any]] = {
    "not": {"type": "string", "not": {"const": "a"}},
    "if": {**OBJECT, "if": {"required": ["a"]}, "then": {"required": ["b"]}},
    "dependentRequired": {**OBJECT, "dependentRequired": {"a": ["b"]}},
    "dependentSchemas": {**OBJECT, "dependentSchemas": {"a": {"required": ["b"]}}},
    "dependencies": {**OBJECT, "dependencies": {"a": ["b"]}},
    "unevaluatedProperties": {**OBJECT, "unevaluatedProperties": False},
    "unevaluatedItems": {**ARRAY, "unevaluatedItems": False},
    "contains": {**ARRAY, "contains": {"const": "a"}},
    "uniqueItems": {**ARRAY, "uniqueItems": True},
    "$dynamicRef": {"$dynamicRef": "#a"},
    "$recursiveRef": {"$recursiveRef": "#"},
}
IDLE: list[dict[str, Any]] = [
    {"type": "string", "not": False},
    {**OBJECT, "if": {"required": ["a"]}},
    {**OBJECT, "dependentRequired": {}, "dependentSchemas": {}, "dependencies": {}},
    {**OBJECT, "unevaluatedProperties": True},
    {**ARRAY, "unevaluatedItems": {}},
    {**ARRAY, "contains": {"const": "a"}, "minContains": 0},
    {**ARRAY, "uniqueItems": False},
    {**ARRAY, "uniqueItems": True, "maxItems": 1},
]


def in_gateway() -> dict[str, str]:
    source = TABLE.read_text()
    table = source[source.index("const UNHONOURED") :]
    return dict(ENTRY.findall(table[: table.index("\n];")]))


def test_gateway_and_engine_have_the_same_table() -> None:
    assert in_gateway() == NEVER
    assert set(IN_USE) == set(NEVER)


@pytest.mark.parametrize("rules", [GUIDANCE_RULES, XGRAMMAR_RULES], ids=lambda rules: rules.backend)
def test_both_backends_refuse_each_keyword_in_use_and_no_idle_one(rules: SchemaRules) -> None:
    for keyword, schema in IN_USE.items():
        why = why_not(json.dumps(schema), rules)
        assert why is not None and f"`/{keyword}`" in why, (keyword, why)
    for schema in IDLE:
        assert why_not(json.dumps(schema), rules) is None, schema
