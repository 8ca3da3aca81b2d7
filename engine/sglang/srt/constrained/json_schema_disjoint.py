"""Whether no value satisfies two schemas at once: then `oneOf` is `anyOf`."""

import json
from collections.abc import Callable
from typing import Any

from sglang.srt.constrained.json_schema_values import TYPES, has_type, types_of

MOST_STEPS = 20_000  # of all proofs for a schema, which are made while others wait
CHEAPER = 4  # values or names that cost as much as one step
MOST_DEPTH = 12

Resolve = Callable[[str], Any]


class Disjointness:
    """Proves it or does not; what is not proven may still be true."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._steps = 0
        self._keys: dict[int, frozenset[str]] = {}  # of the values of each schema that lists them

    def of_all(self, options: list[Any]) -> bool:
        """Whether each two of them are."""
        return all(self._are(a, b, 0) for i, a in enumerate(options) for b in options[i + 1 :])

    def _are(self, a: Any, b: Any, depth: int) -> bool:
        self._steps += 1
        if a is False or b is False:
            return True
        if self._steps > MOST_STEPS or depth > MOST_DEPTH or a is True or b is True:
            return False
        for this, that in ((a, b), (b, a)):
            if "$ref" in this and self._are(self._resolve(this["$ref"]), that, depth + 1):
                return True
            if any(self._are(part, that, depth + 1) for part in this.get("allOf", ())):
                return True
            for keyword in ("anyOf", "oneOf"):
                options = this.get(keyword, ())
                if options and all(self._are(option, that, depth + 1) for option in options):
                    return True
            values = _values(this)
            if values is not None and not self._may_have_any(that, values):
                return True
        common = _common_types(a, b)
        return all(self._are_within(a, b, type_name, depth) for type_name in common)

    def _may_have_any(self, node: Any, values: list[Any]) -> bool:
        """False only if the schema excludes all these values."""
        self._steps += len(values) // CHEAPER
        types = types_of(node)
        typed = [value for value in values if has_type(value, types)]
        if not typed or _values(node) is None:
            return bool(typed)
        known = self._keys_of(node)
        return any(_key(value) in known for value in typed)

    def _keys_of(self, node: Any) -> frozenset[str]:
        if id(node) not in self._keys:
            self._keys[id(node)] = frozenset(map(_key, _values(node) or ()))
        return self._keys[id(node)]

    def _are_within(self, a: Any, b: Any, type_name: str, depth: int) -> bool:
        """Whether they exclude each other among the values of one type."""
        if type_name == "object":
            return self._are_objects(a, b, depth) or self._are_objects(b, a, depth)
        if type_name == "string":
            return _apart(a, b, "minLength", "maxLength")
        if type_name in ("integer", "number"):
            return _apart(a, b, "minimum", "maximum")
        if type_name == "array":
            return _apart(a, b, "minItems", "maxItems")
        return False

    def _are_objects(self, a: Any, b: Any, depth: int) -> bool:
        """By a property that `a` requires, and whose values in `b` are others or none."""
        self._steps += len(a.get("required", ())) // CHEAPER
        ours, theirs = a.get("properties", {}), b.get("properties", {})
        for name in a.get("required", ()):
            if name in theirs:
                if theirs[name] is False or self._are(
                    ours.get(name, True), theirs[name], depth + 1
                ):
                    return True
            elif b.get("additionalProperties") is False and not b.get("patternProperties"):
                return True
        return False


def _values(node: Any) -> list[Any] | None:
    """All values that the schema can have, or more; None: there is no list."""
    if "const" in node:
        return [node["const"]]
    values: list[Any] | None = node.get("enum")
    return values


def _key(value: Any) -> str:
    """Equal for values that are equal in JSON."""
    return json.dumps(_normal(value), sort_keys=True)


def _normal(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_normal(each) for each in value]
    if isinstance(value, dict):
        return {key: _normal(each) for key, each in value.items()}
    return value


def _common_types(a: Any, b: Any) -> list[str]:
    def of(node: Any) -> set[str]:
        types = set(types_of(node)) or set(TYPES)
        if "number" in types:
            types.add("integer")
        return types

    return [name for name in TYPES if name in of(a) & of(b)]


def _apart(a: Any, b: Any, low: str, high: str) -> bool:
    return any(
        low in this and high in that and this[low] > that[high] for this, that in ((a, b), (b, a))
    )
