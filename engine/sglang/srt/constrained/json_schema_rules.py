"""Which JSON Schemas a backend honours fully; the rest is refused, with its place and what to do.

A schema is walked once, without recursion, and written again for the library: annotations are taken
out, patterns are spelt out (`regex_rules`), `oneOf` becomes `anyOf` where the two are the same.
"""

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sglang.srt.constrained.json_formats import KNOWN, PATTERNS
from sglang.srt.constrained.json_schema_disjoint import Disjointness
from sglang.srt.constrained.json_schema_refs import Endings, find, local_ref, ref_pointer, resolve
from sglang.srt.constrained.json_schema_values import (
    NEVER,
    Schema,
    SchemaRefused,
    check_order,
    check_values,
    step,
    types_of,
    without_idle,
)
from sglang.srt.constrained.regex_rules import RegexRefused, string_pattern

OLD_DRAFT = re.compile(r"draft-0[3-7]")  # there, what stands beside `$ref` is ignored


@dataclass(frozen=True)
class SchemaRules:
    """What one backend honours."""

    backend: str
    formats: frozenset[str]  # that the library honours itself
    refused: dict[str, str]  # keywords that constrain something → what to do
    plain_patterns: bool  # a pattern cannot match characters that JSON escapes
    narrow: Callable[[Schema, str], None] | None = None  # its own checks of one schema, and edits


def prepare_schema(text: str, rules: SchemaRules) -> str:
    """The schema as the backend gets it. Raises ValueError for one that it cannot honour."""
    return json.dumps(prepared_schema(_parsed(text), rules), ensure_ascii=False)


def prepared_schema(schema: Any, rules: SchemaRules) -> Any:
    """The same for a schema that is read already; it is changed in place."""
    if schema is False:
        raise SchemaRefused("", "`false` allows no value; write a schema that does")
    if not isinstance(schema, dict | bool):
        raise SchemaRefused(
            "", f"a schema is an object or a boolean, not a {type(schema).__name__}"
        )
    return _Walk(schema, rules).run() if isinstance(schema, dict) else schema


def _parsed(text: str) -> Any:
    def refuse(name: str) -> None:
        raise SchemaRefused("", f"{name} is no JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except RecursionError:
        raise SchemaRefused("", "it is nested too deep") from None
    except json.JSONDecodeError as error:
        raise SchemaRefused("", f"it is not JSON: {error}") from None


class _Walk:
    """Over each schema that can be reached from the root, once."""

    def __init__(self, root: Schema, rules: SchemaRules) -> None:
        self._root = root
        self._rules = rules
        self._is_old = bool(OLD_DRAFT.search(str(root.get("$schema", ""))))
        self._nodes: list[tuple[Schema, str]] = []
        self._seen: set[int] = set()
        self._targets: dict[str, Any] = {}  # of references, before anything is written again
        self._disjoint = Disjointness(self._targets.__getitem__)

    def run(self) -> Schema:
        waiting: list[tuple[Any, str]] = [(self._root, "")]
        while waiting:
            node, pointer = waiting.pop()
            if not isinstance(node, dict) or id(node) in self._seen:
                continue
            self._seen.add(id(node))
            self._nodes.append((node, pointer))
            self._check(node, pointer)
            waiting.extend(reversed(list(self._inside(node, pointer))))
        self._check_ids()
        for node, pointer in self._nodes:
            self._join_one_of(node, pointer)
        if self._rules.narrow is not None:
            for node, pointer in self._nodes:
                self._rules.narrow(node, pointer)
        Endings(self._targets).check(self._nodes)
        self._check_targets()
        return self._root

    def _check(self, node: Schema, pointer: str) -> None:
        check_values(node, pointer)
        if "$ref" in node:
            node["$ref"] = local_ref(node["$ref"], self._root, pointer)
            self._targets[node["$ref"]] = resolve(node["$ref"], self._root, pointer)
            if self._is_old:
                for keyword in [each for each in node if each not in _KEPT_BESIDE_REF]:
                    del node[keyword]
        without_idle(node)
        check_order(node, pointer)
        for keyword, remedy in {**NEVER, **self._rules.refused}.items():
            if keyword in node:
                raise SchemaRefused(
                    step(pointer, keyword),
                    f"`{keyword}` cannot be honoured by {self._rules.backend}; {remedy}",
                )
        if "pattern" in node:
            node["pattern"] = self._pattern(node["pattern"], step(pointer, "pattern"))
        self._write_format(node, pointer)
        if "patternProperties" in node:
            node["patternProperties"] = self._patterns(
                node["patternProperties"], step(pointer, "patternProperties")
            )

    def _write_format(self, node: Schema, pointer: str) -> None:
        """As a pattern; beside another one it becomes a schema of its own in `allOf`."""
        name = node.get("format")
        if name is None or name in self._rules.formats:
            return
        del node["format"]
        if name in PATTERNS and "pattern" not in node:
            node["pattern"] = PATTERNS[name]
        elif name in PATTERNS:
            node["allOf"] = [*node.get("allOf", ()), {"pattern": PATTERNS[name]}]
        elif name in KNOWN:
            raise SchemaRefused(
                step(pointer, "format"),
                f"the format {name} cannot be honoured by {self._rules.backend}; use one of "
                f"{', '.join(sorted({*self._rules.formats, *PATTERNS}))}, or a `pattern`",
            )

    def _patterns(self, schemas: Schema, pointer: str) -> Schema:
        written: Schema = {}
        for pattern, schema in schemas.items():
            name = self._pattern(pattern, step(pointer, pattern))
            if name in written:
                raise SchemaRefused(
                    step(pointer, pattern),
                    "it matches the same names as another pattern; write both schemas as one",
                )
            written[name] = schema
        return written

    def _pattern(self, pattern: str, pointer: str) -> str:
        try:
            return string_pattern(pattern, is_plain=self._rules.plain_patterns)
        except RegexRefused as error:
            raise SchemaRefused(pointer, str(error)) from None

    def _inside(self, node: Schema, pointer: str) -> list[tuple[Any, str]]:
        inside: list[tuple[Any, str]] = []
        for keyword in ("properties", "patternProperties"):
            for name, schema in node.get(keyword, {}).items():
                inside.append((schema, step(pointer, keyword, name)))
        for keyword in ("anyOf", "oneOf", "allOf", "prefixItems", "items"):
            if isinstance(node.get(keyword), list):
                for index, schema in enumerate(node[keyword]):
                    inside.append((schema, step(pointer, keyword, index)))
        for keyword in ("additionalProperties", "propertyNames", "items", "additionalItems"):
            if isinstance(node.get(keyword), dict):
                inside.append((node[keyword], step(pointer, keyword)))
        if "$ref" in node:
            ref = node["$ref"]
            inside.append((self._targets[ref], ref_pointer(ref)))
        return inside

    def _check_ids(self) -> None:
        """An `$id` further inside would give the references below it another root."""
        for node, pointer in self._nodes:
            for keyword in ("$id", "id"):
                if keyword not in node or not isinstance(node[keyword], str):
                    continue
                if node is not self._root and self._targets:
                    raise SchemaRefused(
                        step(pointer, keyword),
                        f"`{keyword}` within a schema that uses `$ref` cannot be honoured; leave "
                        "it out, and refer by pointers from the root",
                    )
                del node[keyword]
            node.pop("$anchor", None)

    def _check_targets(self) -> None:
        """What was written again has its parts elsewhere, or they are others now."""
        for node, pointer in self._nodes:
            ref = node.get("$ref")
            if ref is None:
                continue
            found = find(ref, self._root)
            if found is not self._targets[ref]:
                raise SchemaRefused(
                    step(pointer, "$ref"),
                    f"`$ref` {ref!r} leads into a keyword that {self._rules.backend} gets in "
                    "another form; move what it names into `$defs`",
                )

    def _join_one_of(self, node: Schema, pointer: str) -> None:
        if "oneOf" not in node:
            return
        options = node["oneOf"]
        if not self._disjoint.of_all(options):
            raise SchemaRefused(
                step(pointer, "oneOf"),
                f"`oneOf` cannot be honoured by {self._rules.backend} where its schemas may hold "
                "at the same time; use `anyOf`, or make them exclude each other by a required "
                "property with a `const` of its own",
            )
        if len(options) > 1 and "anyOf" in node:
            raise SchemaRefused(
                step(pointer, "oneOf"), "`oneOf` beside `anyOf` cannot be honoured; use one of them"
            )
        if "anyOf" not in node:
            node["anyOf"] = node.pop("oneOf")
        else:
            node.setdefault("allOf", []).append(node.pop("oneOf")[0])


_KEPT_BESIDE_REF = ("$ref", "$schema", "$id", "id", "$defs", "definitions")


def without_negative_zero(node: Schema, pointer: str) -> None:
    """llguidance writes `-0` among integers: they become those below 0 and the others."""
    if types_of(node) != ("integer",) or not {"anyOf", "enum", "const", "$ref"}.isdisjoint(node):
        return
    low = max(node.get("minimum", -math.inf), node.get("exclusiveMinimum", -math.inf))
    high = min(node.get("maximum", math.inf), node.get("exclusiveMaximum", math.inf))
    if low < 0 <= high:
        node["anyOf"] = [{"maximum": -1}, {"minimum": 0}]


GUIDANCE_RULES = SchemaRules(
    backend="llguidance",
    formats=frozenset(["duration", "ipv6"]),
    refused={
        "propertyNames": "say by `patternProperties` which names there are, with "
        "`additionalProperties` false"
    },
    plain_patterns=False,
    narrow=without_negative_zero,
)
