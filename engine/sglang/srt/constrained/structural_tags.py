"""Structural tags: free text with parts between tags, in the old form and the new.

Old: {"structures": [{"begin", "schema", "end"}], "triggers"}. New: {"type": "structural_tag",
"format"}. Both become a format whose schemas and patterns a backend honours; a format that it does
not honour is refused by name.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from sglang.srt.constrained.json_schema_rules import SchemaRules, prepared_schema
from sglang.srt.constrained.json_schema_values import SchemaRefused, step
from sglang.srt.constrained.regex_rules import RegexRefused, whole_pattern

Format = dict[str, Any]


class TagRefused(ValueError):
    """Names the place, what is wrong there, and what to do."""

    def __init__(self, pointer: str, what: str) -> None:
        self.pointer, self.what = pointer, what
        super().__init__(f"at `{pointer or '/'}` of the structural tag: {what}")


# Fields of each format beside `type`, and what may be in them; (needed, optional).
_FIELDS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "const_string": ({"value": "text"}, {}),
    "json_schema": ({"json_schema": "schema"}, {"style": "json"}),
    "regex": ({"pattern": "text"}, {}),
    "any_text": ({}, {"excludes": "nothing"}),
    "sequence": ({"elements": "formats"}, {}),
    "or": ({"elements": "formats"}, {}),
    "tag": ({"begin": "text", "content": "format", "end": "text"}, {}),
    "optional": ({"content": "format"}, {}),
    "plus": ({"content": "format"}, {}),
    "star": ({"content": "format"}, {}),
    "triggered_tags": (
        {"triggers": "texts", "tags": "formats"},
        {"at_least_one": "flag", "stop_after_first": "flag", "excludes": "nothing"},
    ),
    "tags_with_separator": (
        {"tags": "formats", "separator": "text"},
        {"at_least_one": "flag", "stop_after_first": "flag"},
    ),
}
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "text": (lambda value: isinstance(value, str), "a string"),
    "texts": (
        lambda value: isinstance(value, list) and bool(value) and all(map(_is_text, value)),
        "a list of strings that are not empty",
    ),
    "schema": (lambda value: isinstance(value, dict | bool), "a JSON schema"),
    "json": (lambda value: value == "json", '"json"'),
    "nothing": (lambda value: value == [], "left out"),
    "flag": (lambda value: isinstance(value, bool), "true or false"),
    "format": (lambda value: isinstance(value, dict), "a format"),
    "formats": (
        lambda value: (
            isinstance(value, list) and bool(value) and all(isinstance(e, dict) for e in value)
        ),
        "a list of formats",
    ),
}


def prepared_format(text: str, rules: SchemaRules) -> Format:
    """The format that the structural tag stands for. Raises ValueError for one not honoured."""
    tag = json.loads(text)
    if not isinstance(tag, dict):
        raise TagRefused("", "a structural tag is an object")
    if "structures" in tag or "triggers" in tag:
        try:
            return _checked(_from_old_form(tag), "", rules)
        except TagRefused as error:
            raise TagRefused(_in_old_form(error.pointer), error.what) from None
    if tag.get("type") == "structural_tag" and isinstance(tag.get("format"), dict):
        return _checked(tag["format"], "/format", rules)
    raise TagRefused(
        "", 'it needs "structures" and "triggers", or "type": "structural_tag" and "format"'
    )


def _checked(found: Format, pointer: str, rules: SchemaRules) -> Format:
    waiting = [(found, pointer)]
    while waiting:
        node, at = waiting.pop()
        _check(node, at, rules)
        waiting.extend(_inside(node, at))
    LarkWriter({}).write(found)  # refuses free text whose end nothing tells
    return found


def _from_old_form(tag: dict[str, Any]) -> Format:
    structures = tag.get("structures")
    if not isinstance(structures, list):
        raise TagRefused("/structures", "it must be a list of {begin, schema, end}")
    tags = []
    for index, structure in enumerate(structures):
        if not isinstance(structure, dict) or set(structure) != {"begin", "schema", "end"}:
            raise TagRefused(f"/structures/{index}", "it must have begin, schema and end, no more")
        content = {"type": "json_schema", "json_schema": structure["schema"]}
        tags.append(
            {
                "type": "tag",
                "begin": structure["begin"],
                "content": content,
                "end": structure["end"],
            }
        )
    return {"type": "triggered_tags", "triggers": tag.get("triggers"), "tags": tags}


def _in_old_form(pointer: str) -> str:
    """Where in the old form stands what it became."""
    return pointer.replace("/tags", "/structures", 1).replace("/content/json_schema", "/schema")


def _check(node: Format, pointer: str, rules: SchemaRules) -> None:
    kind = node.get("type")
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise TagRefused(
            step(pointer, "type"),
            f"the format {kind!r} is not honoured; use one of {', '.join(_FIELDS)}",
        )
    needed, optional = _FIELDS[kind]
    for field in node:
        if field != "type" and field not in needed and field not in optional:
            raise TagRefused(step(pointer, field), f"{kind} with `{field}` is not honoured")
    for field, wanted in {**needed, **optional}.items():
        if field in optional and field not in node:
            continue
        is_right, what = _KINDS[wanted]
        if not is_right(node.get(field)):
            raise TagRefused(step(pointer, field), f"`{field}` of {kind} must be {what}")
    if kind == "json_schema":
        with _placed(step(pointer, "json_schema")):
            node["json_schema"] = prepared_schema(node["json_schema"], rules)
    elif kind == "regex":
        with _placed(step(pointer, "pattern")):
            node["pattern"] = whole_pattern(node["pattern"])
    elif "tags" in node:
        _check_tags(node, pointer)


@contextlib.contextmanager
def _placed(pointer: str) -> Iterator[None]:
    """What is wrong with a schema or a pattern, with its place in the structural tag."""
    try:
        yield
    except (SchemaRefused, RegexRefused) as error:
        raise TagRefused(pointer, str(error)) from None


def _check_tags(node: Format, pointer: str) -> None:
    for index, tag in enumerate(node["tags"]):
        at = step(pointer, "tags", index)
        begin = tag.get("begin")
        if tag.get("type") != "tag" or not isinstance(begin, str):
            raise TagRefused(at, "it must be a tag that begins with a string")
        if node["type"] == "triggered_tags":
            matching = [trigger for trigger in node["triggers"] if begin.startswith(trigger)]
            if len(matching) != 1:
                raise TagRefused(
                    step(at, "begin"), f"{begin!r} must begin with one of the triggers, not more"
                )


def _inside(node: Format, pointer: str) -> list[tuple[Format, str]]:
    inside = []
    for field in ("elements", "tags"):
        for index, each in enumerate(node.get(field, ())):
            inside.append((each, step(pointer, field, index)))
    if "content" in node:
        inside.append((node["content"], step(pointer, "content")))
    return inside


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


# ------------------------------------------------------------------ Lark


class LarkWriter:
    """Writes a format as rules of the Lark dialect of llguidance."""

    def __init__(self, json_options: dict[str, Any]) -> None:
        self._json_options = json_options
        self._rules: list[str] = []

    def write(self, node: Format) -> str:
        """All rules, from `start`."""
        start = self._rule(node, "", is_last=True)
        return "\n".join([f"start: {start}", *self._rules]) + "\n"

    def _rule(self, node: Format, pointer: str, *, is_last: bool) -> str:
        """An expression; `is_last`: nothing follows it, so that free text may end the answer."""
        kind = node["type"]
        if kind in ("any_text", "triggered_tags") and not is_last:
            raise TagRefused(
                pointer,
                f"{kind} before something else is not honoured, unless it is the content of a tag "
                "that has an end",
            )
        writers: dict[str, Callable[[], str]] = {
            "const_string": lambda: _quoted(node["value"]),
            "json_schema": lambda: self._schema(node["json_schema"]),
            "regex": lambda: f"/{node['pattern']}/" if node["pattern"] else '""',
            "any_text": lambda: r"/(.|\n)*/",
            "sequence": lambda: self._sequence(node["elements"], pointer, is_last),
            "or": lambda: self._or(node["elements"], pointer, is_last),
            "tag": lambda: self._tag(node, pointer, is_last),
            "optional": lambda: f"({self._rule(node['content'], pointer, is_last=False)})?",
            "plus": lambda: f"({self._rule(node['content'], pointer, is_last=False)})+",
            "star": lambda: f"({self._rule(node['content'], pointer, is_last=False)})*",
            "triggered_tags": lambda: self._triggered(node, pointer),
            "tags_with_separator": lambda: self._separated(node, pointer),
        }
        return writers[kind]()

    def _schema(self, schema: Any) -> str:
        return f"%json {json.dumps(with_options(schema, self._json_options))}"

    def _sequence(self, elements: list[Format], pointer: str, is_last: bool) -> str:
        last = len(elements) - 1
        return " ".join(
            f"({self._rule(each, step(pointer, 'elements', i), is_last=is_last and i == last)})"
            for i, each in enumerate(elements)
        )

    def _or(self, elements: list[Format], pointer: str, is_last: bool) -> str:
        options = (
            self._rule(each, step(pointer, "elements", i), is_last=is_last)
            for i, each in enumerate(elements)
        )
        return f"({' | '.join(options)})"

    def _tag(self, node: Format, pointer: str, is_last: bool, begin: str | None = None) -> str:
        begin = node["begin"] if begin is None else begin
        content = node["content"]
        if content["type"] == "any_text" and node["end"]:
            name = self._new_name()
            self._rules.append(f"{name}[suffix={_quoted(node['end'])}]: /(.|\\n)*/")
            return f"{_quoted(begin)} {name}"
        inner = self._rule(content, step(pointer, "content"), is_last=is_last and not node["end"])
        return f"{_quoted(begin)} ({inner}) {_quoted(node['end'])}"

    def _triggered(self, node: Format, pointer: str) -> str:
        options = []
        for trigger in node["triggers"]:
            rests = [
                self._tag(tag, step(pointer, "tags", i), False, tag["begin"].removeprefix(trigger))
                for i, tag in enumerate(node["tags"])
                if tag["begin"].startswith(trigger)
            ]
            if not rests:
                continue
            name = self._new_name()
            self._rules.append(f"{name}[lazy]: /(.|\\n)*/ {_quoted(trigger)}")
            options.append(f"{name} ({' | '.join(rests)})")
        tags = f"({' | '.join(options)})"
        at_least_one, once = node.get("at_least_one"), node.get("stop_after_first")
        rest = self._new_name().upper()
        without = " ".join(f"& ~/(.|\\n)*{_escaped(each)}(.|\\n)*/" for each in node["triggers"])
        self._rules.append(f"{rest}: /(.|\\n)*/ {without}")
        if once:
            return tags if at_least_one else f"({tags} | {rest})"
        return f"{tags}{'+' if at_least_one else '*'} {rest}"

    def _separated(self, node: Format, pointer: str) -> str:
        options = [
            self._tag(tag, step(pointer, "tags", i), False) for i, tag in enumerate(node["tags"])
        ]
        name = self._new_name()
        self._rules.append(f"{name}: {' | '.join(options)}")
        more = "" if node.get("stop_after_first") else f" ({_quoted(node['separator'])} {name})*"
        return f"({name}{more})" if node.get("at_least_one") else f"({name}{more})?"

    def _new_name(self) -> str:
        return f"part_{len(self._rules)}"


def with_options(schema: Any, json_options: dict[str, Any]) -> dict[str, Any]:
    """The schema with the settings of llguidance's compiler in it."""
    options = {"x-guidance": json_options}
    return {**schema, **options} if isinstance(schema, dict) else {"allOf": [schema], **options}


def _quoted(text: str) -> str:
    return json.dumps(text)


def _escaped(text: str) -> str:
    """The text in a pattern."""
    return "".join(
        char if char.isalnum() and char.isascii() else f"\\u{{{ord(char):x}}}" for char in text
    )
