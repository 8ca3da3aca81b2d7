"""A constraint's text as a library gets it: checked, and written so that it has one meaning."""

import json
import re

from sglang.srt.constrained.json_schema_rules import SchemaRules, prepare_schema
from sglang.srt.constrained.regex_rules import whole_pattern
from sglang.srt.constrained.structural_tags import prepared_format

AT_ONCE = 16 * 1024  # characters that are checked while a request arrives; the rest is later
NO_TEXT = "no text can satisfy it"
_RULE = re.compile(r"^[ \t]*([A-Za-z_][\w-]*)[ \t]*::=", re.MULTILINE)


def prepared_text(kind: str, text: str, rules: SchemaRules) -> str:
    """Raises ValueError for what the backend does not honour."""
    if kind == "json":
        return prepare_schema(text, rules)
    if kind == "regex":
        return whole_pattern(text)
    if kind == "structural_tag":
        return json.dumps(prepared_format(text, rules), ensure_ascii=False)
    if kind == "ebnf":
        check_rules(text)
        return text
    raise ValueError(f"Invalid key_type: {kind}={text}")


def why_refused(kind: str, text: str, rules: SchemaRules) -> str | None:
    """What can be said at once; None: nothing against it yet."""
    if len(text) > AT_ONCE:
        return None
    try:
        prepared_text(kind, text, rules)
    except ValueError as error:
        return str(error)
    return None


def check_rules(text: str) -> None:
    """A grammar begins at `root`, and names each rule once, whatever case is used."""
    names: dict[str, str] = {}
    for name in _RULE.findall(text):
        plain = re.sub(r"([a-z])([A-Z])", r"\1_\2", name).replace("-", "_").lower()
        if plain in names:
            raise ValueError(
                f"the rules {names[plain]} and {name} of the grammar have names that are too much "
                "alike; rename one"
            )
        names[plain] = name
    if "root" not in names.values():
        raise ValueError("the grammar has no rule `root`, where an answer begins; add one")
    if "start" in names:
        raise ValueError("the rule name `start` cannot be used; rename it")
