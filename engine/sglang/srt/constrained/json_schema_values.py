"""What the keywords of JSON Schema may hold, and which of them constrain anything."""

import math
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
OBJECT = ("properties", "required", "additionalProperties", "patternProperties", "propertyNames")
OBJECT_COUNTS = ("minProperties", "maxProperties")
ARRAY = ("items", "prefixItems", "additionalItems", "minItems", "maxItems")
STRING = ("pattern", "format", "minLength", "maxLength")
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
NUMBER = (*BOUNDS, "multipleOf")
OF_TYPE = {
    "object": (*OBJECT, *OBJECT_COUNTS),
    "array": ARRAY,
    "string": STRING,
    "number": NUMBER,
}
MOST_EXACT = 2**53  # integers beyond it are not exact where libraries compute in floating point

# Constraints that no built-in backend can express, and what to write instead.
NEVER: dict[str, str] = {
    "not": "list what is allowed by `enum`, `type` or `anyOf`",
    "if": "write the cases as `anyOf`",
    "dependentRequired": "write the cases as `anyOf`, each with its `required`",
    "dependentSchemas": "write the cases as `anyOf`",
    "dependencies": "write the cases as `anyOf`, each with its `required`",
    "unevaluatedProperties": "use `additionalProperties` beside `properties`",
    "unevaluatedItems": "use `items` beside `prefixItems`",
    "contains": "say by `prefixItems` where the item stands, or constrain all by `items`",
    "uniqueItems": "leave it out and check the answer, or list the arrays by `enum`",
    "$dynamicRef": "use `$ref` with a pointer",
    "$recursiveRef": "use `$ref` with a pointer",
}


class SchemaRefused(ValueError):
    """Names the place in the schema, the keyword, and what to do."""

    def __init__(self, pointer: str, what: str) -> None:
        super().__init__(f"at `{pointer or '/'}` of the schema: {what}")


def step(pointer: str, *keys: str | int) -> str:
    """The JSON pointer of something further inside."""
    for key in keys:
        pointer += "/" + str(key).replace("~", "~0").replace("/", "~1")
    return pointer


def check_values(node: Schema, pointer: str) -> None:
    """Refuses keywords whose value is of the wrong kind."""
    for keyword, value in node.items():
        rule = _RULES.get(keyword)
        if rule is not None and not rule[0](value):
            raise SchemaRefused(
                step(pointer, keyword), f"`{keyword}` must be {rule[1]}, not {_short(value)}"
            )


def without_idle(node: Schema) -> None:
    """Takes out what constrains nothing, and writes draft 4's exclusive bounds as numbers."""
    for keyword, is_idle in _IDLE.items():
        if keyword in node and is_idle(node[keyword], node):
            del node[keyword]
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        flag = node.get(exclusive)
        if isinstance(flag, bool):
            del node[exclusive]
            if flag and bound in node:
                node[exclusive] = node.pop(bound)
    for keyword in (*OBJECT_COUNTS, "minItems", "maxItems", "minLength", "maxLength"):
        if keyword in node:
            node[keyword] = int(node[keyword])


def check_order(node: Schema, pointer: str) -> None:
    """Refuses bounds that leave nothing between them, and numbers that are not exact."""
    for low, high in (
        ("minLength", "maxLength"),
        ("minItems", "maxItems"),
        ("minProperties", "maxProperties"),
        ("minimum", "maximum"),
    ):
        if low in node and high in node and node[low] > node[high]:
            raise SchemaRefused(
                step(pointer, low),
                f"`{low}` {node[low]} is above `{high}` {node[high]}, so nothing can satisfy both",
            )
    for keyword in NUMBER:
        if abs(node.get(keyword, 0)) > MOST_EXACT:
            raise SchemaRefused(
                step(pointer, keyword),
                f"`{keyword}` beyond {MOST_EXACT} (2 to the power of 53) cannot be honoured "
                "exactly; leave it out",
            )
    factor = node.get("multipleOf", 1)
    if factor != int(factor) and math.frexp(factor)[0] * 256 % 1:
        raise SchemaRefused(
            step(pointer, "multipleOf"),
            f"`multipleOf` {factor} is seen differently by validators that compute in floating "
            "point; use an integer, a half, a quarter, and so on",
        )


def types_of(node: Schema) -> tuple[str, ...]:
    """The types that a schema names; empty: it names none."""
    given = node.get("type", ())
    return (given,) if isinstance(given, str) else tuple(given)


def type_of(value: object) -> str:
    """The narrowest type of a JSON value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "integer"
    names = {float: "number", str: "string", list: "array", dict: "object"}
    return names[type(value)]


def has_type(value: object, types: tuple[str, ...]) -> bool:
    found = type_of(value)
    return not types or found in types or (found == "integer" and "number" in types)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"


def _is_schema(value: object) -> bool:
    return isinstance(value, dict | bool)


def _is_list_of_schemas(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_schema, value))


def _is_map_of_schemas(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_schema, value.values()))


def _is_count(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and 0 <= value < math.inf
        and value == int(value)
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_type(value: object) -> bool:
    if isinstance(value, str):
        return value in TYPES
    return isinstance(value, list) and bool(value) and all(each in TYPES for each in value)


def _is_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


_SCHEMA = (_is_schema, "a schema (an object or a boolean)")
_SCHEMAS = (_is_list_of_schemas, "a list of at least one schema")
_MAP = (_is_map_of_schemas, "an object whose values are schemas")
_COUNT = (_is_count, "a whole number from 0")
_TEXT: tuple[Callable[[Any], bool], str] = (lambda value: isinstance(value, str), "a string")
_BOUND = (_is_number, "a number")
_EXCLUSIVE: tuple[Callable[[Any], bool], str] = (
    lambda value: isinstance(value, int | float),
    "a number (a boolean in draft 4)",
)
_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "type": (_is_type, f"one of {', '.join(TYPES)}, or a list of them"),
    "enum": (lambda value: isinstance(value, list) and bool(value), "a list of at least one value"),
    "required": (_is_names, "a list of strings"),
    **dict.fromkeys(("properties", "patternProperties", "dependentSchemas"), _MAP),
    **dict.fromkeys(("$defs", "definitions"), _MAP),
    "items": (
        lambda value: (
            _is_schema(value) or (isinstance(value, list) and all(map(_is_schema, value)))
        ),
        "a schema, or a list of schemas in drafts before 2020-12",
    ),
    **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), _SCHEMAS),
    **dict.fromkeys(("additionalProperties", "propertyNames", "additionalItems"), _SCHEMA),
    **dict.fromkeys(("not", "if", "then", "else", "contains"), _SCHEMA),
    **dict.fromkeys(("unevaluatedProperties", "unevaluatedItems"), _SCHEMA),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _COUNT),
    **dict.fromkeys(("minProperties", "maxProperties", "minContains", "maxContains"), _COUNT),
    **dict.fromkeys(("minimum", "maximum"), _BOUND),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _EXCLUSIVE),
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    **dict.fromkeys(("pattern", "format", "$ref"), _TEXT),
    "uniqueItems": (lambda value: isinstance(value, bool), "true or false"),
}

_OPEN: tuple[Any, ...] = (True, {})
_IDLE: dict[str, Callable[[Any, Schema], bool]] = {
    **dict.fromkeys(
        ("title", "description", "default", "examples", "$comment", "deprecated", "readOnly"),
        lambda value, node: True,
    ),
    **dict.fromkeys(
        ("writeOnly", "contentEncoding", "contentMediaType", "contentSchema", "x-guidance"),
        lambda value, node: True,
    ),
    **dict.fromkeys(("minItems", "minLength", "minProperties"), lambda value, node: value == 0),
    **dict.fromkeys(("required", "dependentRequired", "dependentSchemas"), lambda v, node: not v),
    **dict.fromkeys(("dependencies", "patternProperties"), lambda value, node: not value),
    **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties"), lambda v, node: v in _OPEN),
    **dict.fromkeys(("propertyNames",), lambda value, node: value in _OPEN),
    "uniqueItems": lambda value, node: not value or node.get("maxItems", 2) <= 1,
    "not": lambda value, node: value is False,
    "if": lambda value, node: "then" not in node and "else" not in node,
    "then": lambda value, node: "if" not in node,
    "else": lambda value, node: "if" not in node,
    "contains": lambda value, node: node.get("minContains") == 0 and "maxContains" not in node,
    "minContains": lambda value, node: "contains" not in node,
    "maxContains": lambda value, node: "contains" not in node,
    "additionalItems": lambda value, node: not isinstance(node.get("items"), list),
}
