"""JSON Schemas in the shapes that xgrammar honours fully.

The library reads one kind of constraint per schema and passes over what stands beside it. So each
schema here is one of: a reference; a list of values; alternatives; one schema to satisfy; types
with their own keywords. What fits none is refused.
"""

import math
from typing import Any

from sglang.srt.constrained.json_schema_rules import SchemaRules
from sglang.srt.constrained.json_schema_values import (
    BOUNDS,
    OBJECT,
    OF_TYPE,
    Schema,
    SchemaRefused,
    has_type,
    step,
    types_of,
)
from sglang.srt.constrained.regex_lengths import fitted_pattern

ALL_KEYWORDS = (
    *("$ref", "const", "enum", "anyOf", "allOf", "type"),
    *(keyword for keywords in OF_TYPE.values() for keyword in keywords),
)
OTHERWISE = "start with --grammar-backend llguidance"


def narrow(node: Schema, pointer: str) -> None:
    """Edits the schema into a shape that the library honours, or refuses it."""
    found = [keyword for keyword in ALL_KEYWORDS if keyword in node]
    if "$ref" in node:
        _alone(found, ("$ref",), pointer)
    elif "const" in node or "enum" in node:
        _narrow_values(node, found, pointer)
    elif "anyOf" in node:
        _narrow_any_of(node, found, pointer)
    elif "allOf" in node:
        _narrow_all_of(node, found, pointer)
    else:
        _narrow_types(node, found, pointer)


def _alone(found: list[str], shape: tuple[str, ...], pointer: str) -> None:
    for keyword in found:
        if keyword not in shape:
            raise _refused(
                pointer,
                keyword,
                f"`{keyword}` beside `{shape[0]}` cannot be honoured by xgrammar; write one schema "
                f"that says both, or {OTHERWISE}",
            )


def _refused(pointer: str, keyword: str, what: str) -> SchemaRefused:
    return SchemaRefused(step(pointer, keyword), what)


def _narrow_values(node: Schema, found: list[str], pointer: str) -> None:
    first = "const" if "const" in node else "enum"
    _alone(found, (first, "type", "minLength", "maxLength"), pointer)
    values = [node["const"]] if "const" in node else node["enum"]
    least, most = node.pop("minLength", 0), node.pop("maxLength", math.inf)
    kept = [
        value
        for value in values
        if has_type(value, types_of(node))
        and (not isinstance(value, str) or least <= len(value) <= most)
    ]
    if not kept:
        raise _refused(pointer, first, f"no value of `{first}` satisfies what stands beside it")
    node.pop("type", None)
    if first == "enum":
        node["enum"] = kept


def _narrow_any_of(node: Schema, found: list[str], pointer: str) -> None:
    _alone(found, ("anyOf", "type"), pointer)
    node["anyOf"] = [option for option in node["anyOf"] if option is not False]
    if not node["anyOf"]:
        raise _refused(pointer, "anyOf", "`anyOf` of nothing but `false` allows no value")
    types = types_of(node)
    for index, option in enumerate(node["anyOf"]):
        if types and not _is_of(option, types):
            raise _refused(
                pointer,
                "type",
                f"`type` beside `anyOf` cannot be honoured by xgrammar; write it into the schema "
                f"`anyOf/{index}`",
            )
    node.pop("type", None)


def _is_of(option: Any, types: tuple[str, ...]) -> bool:
    """Whether each value of the schema has one of these types, as the schema itself says."""
    if not isinstance(option, dict):
        return False
    if "const" in option or "enum" in option:
        values = [option["const"]] if "const" in option else option["enum"]
        return all(has_type(value, types) for value in values)
    own = types_of(option)
    return bool(own) and all(
        each in types or (each == "integer" and "number" in types) for each in own
    )


def _narrow_all_of(node: Schema, found: list[str], pointer: str) -> None:
    _alone(found, ("allOf",), pointer)
    if len(node["allOf"]) > 1:
        raise _refused(
            pointer,
            "allOf",
            "`allOf` of several schemas cannot be honoured by xgrammar; write them as one, or "
            + OTHERWISE,
        )


def _narrow_types(node: Schema, found: list[str], pointer: str) -> None:
    types = types_of(node)
    if not types:
        # The library takes a schema without type to be of the first type that its keywords are of.
        types = tuple(name for name, own in OF_TYPE.items() if any(each in found for each in own))
        if not types:
            return
        node["type"] = types[0] if len(types) == 1 else list(types)
    if "number" in types and "integer" in types:
        types = tuple(each for each in types if each != "integer")
        node["type"] = types[0] if len(types) == 1 else list(types)
    for name, own in OF_TYPE.items():
        if name not in types and not (name == "number" and "integer" in types):
            for keyword in own:
                node.pop(keyword, None)
    if "object" in types:
        _narrow_object(node, pointer)
    if "array" in types:
        _narrow_array(node, pointer)
    if "string" in types:
        _narrow_string(node, pointer)
    if "number" in types or "integer" in types:
        _narrow_number(node, pointer, is_integer="integer" in types)


def _narrow_object(node: Schema, pointer: str) -> None:
    if "patternProperties" in node or "propertyNames" in node:
        _narrow_patterns(node, pointer)
    else:
        _narrow_declared(node, pointer)
    rest = node.get("additionalProperties", True)
    names_are_free = rest is not False or "properties" not in node
    if names_are_free and node.get("minProperties", 0) > max(1, len(set(node.get("required", ())))):
        raise _refused(
            pointer,
            "minProperties",
            "`minProperties` above 1 cannot be honoured where names are free, since a name may "
            "come twice; name the properties by `required`",
        )


def _narrow_declared(node: Schema, pointer: str) -> None:
    rest = node.get("additionalProperties", True)
    declared: Schema = node.get("properties", {})
    for name, schema in list(declared.items()):
        if schema is False and rest is False and name not in node.get("required", ()):
            del declared[name]
        elif schema is False:
            raise _refused(
                step(pointer, "properties"),
                name,
                "`false` for a property cannot be honoured by xgrammar where others may follow; "
                "set `additionalProperties` to false",
            )
    for name in node.get("required", ()):
        if name in declared:
            continue
        if rest is False:
            raise _refused(
                pointer,
                "required",
                f"`required` names {name!r}, which `additionalProperties` false excludes",
            )
        declared[name] = rest
        node["properties"] = declared


def _narrow_patterns(node: Schema, pointer: str) -> None:
    keyword = "patternProperties" if "patternProperties" in node else "propertyNames"
    found = [each for each in (*OBJECT, "minProperties") if each in node]
    if keyword == "propertyNames":
        _alone(found, (keyword,), pointer)
        _narrow_names(node, pointer)
        return
    _alone(found, (keyword, "additionalProperties"), pointer)
    if len(node[keyword]) > 1:
        raise _refused(
            pointer,
            keyword,
            "more than one pattern in `patternProperties` cannot be honoured by xgrammar; join "
            f"them, or {OTHERWISE}",
        )
    node.pop("additionalProperties", None)  # it writes no other names


def _narrow_names(node: Schema, pointer: str) -> None:
    names = node["propertyNames"]
    if (
        not isinstance(names, dict)
        or len(set(names) - {"type"}) > 1
        or not (set(names) <= {"type", "pattern", "minLength", "maxLength", "enum"})
    ):
        raise _refused(
            pointer,
            "propertyNames",
            "`propertyNames` is honoured by xgrammar with one of `pattern`, `minLength`, "
            "`maxLength`, `enum`; say the rest by `patternProperties`",
        )


def _narrow_array(node: Schema, pointer: str) -> None:
    if isinstance(node.get("items"), list):
        first = node.pop("items")
        if first:
            node["prefixItems"] = first
        rest = node.pop("additionalItems", True)
        if rest is not True:
            node["items"] = rest
    if any(schema is False for schema in node.get("prefixItems", ())):
        raise _refused(
            pointer, "prefixItems", "`false` in `prefixItems` cannot be honoured; use `maxItems`"
        )


def _narrow_string(node: Schema, pointer: str) -> None:
    lengths = [keyword for keyword in ("minLength", "maxLength") if keyword in node]
    if "pattern" not in node or not lengths:
        return
    fitted = fitted_pattern(node["pattern"], node.get("minLength", 0), node.get("maxLength"))
    if fitted is None:
        raise _refused(
            pointer,
            lengths[0],
            f"`{lengths[0]}` beside `pattern` or `format` cannot be honoured by xgrammar, which "
            f"found no text that is so long; say the length in the pattern, or {OTHERWISE}",
        )
    node["pattern"] = fitted
    for keyword in lengths:
        del node[keyword]


def _narrow_number(node: Schema, pointer: str, *, is_integer: bool) -> None:
    if "multipleOf" in node:
        bounds = [keyword for keyword in BOUNDS if keyword in node]
        if bounds or not is_integer or not float(node["multipleOf"]).is_integer():
            raise _refused(
                pointer,
                "multipleOf",
                "`multipleOf` is honoured by xgrammar for integers without bounds; leave it out, "
                f"or {OTHERWISE}",
            )
        node["multipleOf"] = int(node["multipleOf"])
    if is_integer:
        for keyword in BOUNDS:
            if keyword in node:
                _round(node, keyword)


def _round(node: Schema, keyword: str) -> None:
    """A bound of integers as an integer."""
    value = node.pop(keyword)
    is_low = keyword.endswith("inimum")
    whole = math.ceil(value) if is_low else math.floor(value)
    if keyword.startswith("exclusive") and whole == value:
        whole += 1 if is_low else -1
    bound = "minimum" if is_low else "maximum"
    node[bound] = (max if is_low else min)(whole, node.get(bound, whole))
    if not isinstance(node[bound], int):
        node[bound] = math.ceil(node[bound]) if is_low else math.floor(node[bound])


XGRAMMAR_RULES = SchemaRules(
    backend="xgrammar",
    formats=frozenset(),
    refused={},
    plain_patterns=True,
    narrow=narrow,
)
