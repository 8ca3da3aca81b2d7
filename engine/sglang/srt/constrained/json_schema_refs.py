"""Where `$ref` points, and whether what it leads to ever ends."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from sglang.srt.constrained.json_schema_values import Schema, SchemaRefused, step, types_of


def local_ref(ref: str, root: Any, pointer: str) -> str:
    """The reference as a fragment of this schema; refused when it leads elsewhere."""
    address, hash_sign, fragment = ref.partition("#")
    own = root.get("$id", root.get("id")) if isinstance(root, dict) else None
    if address and address != str(own).rstrip("#"):
        raise SchemaRefused(
            step(pointer, "$ref"),
            f"`$ref` {ref!r} points outside the schema; put what it names into `$defs`, and point "
            "to it by `#/$defs/NAME`",
        )
    if fragment and not fragment.startswith("/"):
        raise SchemaRefused(
            step(pointer, "$ref"), f"`$ref` {ref!r} is no JSON pointer; write `#/$defs/NAME`"
        )
    return "#" + fragment


def resolve(ref: str, root: Any, pointer: str) -> Any:
    """The schema that a local reference names."""
    found = find(ref, root)
    if not isinstance(found, dict | bool):
        raise SchemaRefused(
            step(pointer, "$ref"), f"`$ref` {ref!r} points to nothing; define it under `$defs`"
        )
    return found


def find(ref: str, root: Any) -> Any:
    """Whatever stands where a local reference points; None: nothing does."""
    found = root
    for part in ref.removeprefix("#").split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isascii() and key.isdigit() and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found


def ref_pointer(ref: str) -> str:
    """The JSON pointer of what a local reference names."""
    return unquote(ref.removeprefix("#"))


class Endings:
    """Finds schemas that no finite text satisfies, in time linear in the schema.

    Each schema ends once all that it needs ends: required properties, first items, all of `allOf`,
    what `$ref` names, and one of each `anyOf`.
    """

    def __init__(self, targets: Mapping[str, Any]) -> None:
        """`targets` are those of all references."""
        self._targets = targets
        self._known: set[int] = set()
        self._missing: dict[int, int] = {}  # how much of what it needs does not end yet
        self._needed_by: defaultdict[int, list[int]] = defaultdict(list)
        self._kept: list[Any] = []  # so that no two of them have the same id

    def check(self, nodes: list[tuple[Schema, str]]) -> None:
        """`nodes` are all schemas that can be reached, each with its pointer. What a backend's own
        rules have added to them ends.
        """
        self._known = {id(node) for node, _ in nodes}
        for node, _ in nodes:
            self._add(node)
        ended = [key for key, missing in self._missing.items() if missing <= 0]
        seen = set(ended)
        while ended:
            for key in self._needed_by[ended.pop()]:
                self._missing[key] -= 1
                if self._missing[key] <= 0 and key not in seen:
                    seen.add(key)
                    ended.append(key)
        for node, pointer in nodes:
            if id(node) not in seen:
                raise SchemaRefused(
                    pointer,
                    "it requires itself without an end, so no answer can satisfy it; make what "
                    "leads back to it optional",
                )

    def _add(self, node: Schema) -> None:
        needs = [child for child in self._needs(node) if id(child) in self._known]
        for child in needs:
            self._needed_by[id(child)].append(id(node))
        self._missing[id(node)] = len(needs)
        for keyword in ("anyOf", "oneOf"):
            options = node.get(keyword, ())
            if options and all(id(option) in self._known for option in options):
                choice = object()
                self._kept.append(choice)
                self._missing[id(choice)] = 1
                for option in options:
                    self._needed_by[id(option)].append(id(choice))
                self._missing[id(node)] += 1
                self._needed_by[id(choice)].append(id(node))

    def _needs(self, node: Schema) -> list[Any]:
        needs = list(node.get("allOf", ()))
        if "$ref" in node:
            needs.append(self._targets[node["$ref"]])
        if "enum" in node or "const" in node:
            return needs
        types = types_of(node)
        if types == ("object",):
            declared = node.get("properties", {})
            rest = node.get("additionalProperties", True)
            needs += [declared.get(name, rest) for name in dict.fromkeys(node.get("required", ()))]
        if types == ("array",) and node.get("minItems", 0):
            first = node.get("prefixItems", node.get("items"))
            first = first if isinstance(first, list) else []
            needs += first[: node["minItems"]]
            if node["minItems"] > len(first):
                needs.append(node.get("items") if not isinstance(node.get("items"), list) else True)
        return needs
