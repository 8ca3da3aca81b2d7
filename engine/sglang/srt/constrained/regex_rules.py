r"""Regular expressions in the part of the language on which all flavours agree.

A pattern is read into a tree, and written again for a library with every class spelt out, so that
`.`, `\d` or `[[:alpha:]]` cannot mean one thing to the client and another to the library. `.`,
`\d`, `\w`, `\s` and their opposites stand for what all flavours count among them. What flavours see
differently otherwise, or what is no regular language, is refused.
"""

import functools
import re
from dataclasses import dataclass

LAST = 0x10FFFF
_LOW_HALF = re.compile(r"\\u[dD][c-fC-F][0-9a-fA-F]{2}")  # of a pair that is one character
MOST_REPEATS = 100_000  # in one {m,n}
MOST_DEPTH = 100  # of groups; each takes up to five of the thousand calls that Python nests

Ranges = tuple[tuple[int, int], ...]  # sorted, apart from each other

DIGIT: Ranges = ((0x30, 0x39),)
WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
SPACE: Ranges = ((0x09, 0x0D), (0x20, 0x20))
NO_DIGIT: Ranges = ((0, 0x2F), (0x3A, 0x65F), (0x2000, 0xA61F), (0x1F000, 0x1FBEF))
NO_WORD: Ranges = (
    *(
        (0, 0x2F),
        (0x3A, 0x40),
        (0x5B, 0x5E),
        (0x60, 0x60),
        (0x7B, 0xA9),
        (0xAB, 0xB1),
        (0xB4, 0xB4),
    ),
    *((0xB6, 0xB8), (0xBB, 0xBB), (0xBF, 0xBF), (0xD7, 0xD7), (0xF7, 0xF7), (0x2010, 0x2027)),
    *((0x2030, 0x203E), (0x20A0, 0x20BF), (0x2190, 0x23FF), (0x1F300, 0x1F5FF)),
)
LINE_ENDS: Ranges = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))  # what no `.` is, in any flavour
ALL: Ranges = ((0, 0xD7FF), (0xE000, LAST))
# What stands in a JSON string as it is; the rest is written with a backslash.
UNESCAPED: Ranges = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0xD7FF), (0xE000, LAST))
# The same, and what is written with a backslash and one character.
SHORT_ESCAPES: Ranges = ((0x08, 0x0A), (0x0C, 0x0D), (0x20, 0xD7FF), (0xE000, LAST))
CONTROLS = {"n": 0x0A, "r": 0x0D, "t": 0x09, "f": 0x0C, "v": 0x0B}
PUNCTUATION = (
    "^$\\.*+?()[]{}|/-\"'`~!@#%&=:;,<> _"  # an escaped one is itself; `_` by some flavours
)


NO_SPACE: Ranges = (
    *((0, 0x08), (0x0E, 0x1B), (0x21, 0x84), (0x86, 0x9F), (0xA1, 0x167F), (0x1681, 0x1FFF)),
    *((0x200B, 0x2027), (0x202A, 0x202E), (0x2030, 0x205E), (0x2060, 0x2FFF), (0x3001, 0xD7FF)),
    *((0xE000, 0xFEFE), (0xFF00, LAST)),
)
SHORTHANDS: dict[str, Ranges] = {
    **{"d": DIGIT, "w": WORD, "s": SPACE},
    **{"D": NO_DIGIT, "W": NO_WORD, "S": NO_SPACE},
}

OPPOSITES = {ranges: SHORTHANDS[name.swapcase()] for name, ranges in SHORTHANDS.items()}


class RegexRefused(ValueError):
    """Says what in the pattern, and where."""


@dataclass(frozen=True)
class Class:
    ranges: Ranges


@dataclass(frozen=True)
class Sequence:
    parts: tuple["Node", ...]


@dataclass(frozen=True)
class Choice:
    options: tuple["Node", ...]


@dataclass(frozen=True)
class Repeat:
    part: "Node"
    least: int
    most: int | None


@dataclass(frozen=True)
class Anchor:
    is_start: bool


# Two characters of a pattern, as `\W`, may stand for dozens of ranges: those are computed once.
_kept = functools.lru_cache(maxsize=16)
Node = Class | Sequence | Choice | Repeat | Anchor
ANYTHING = Repeat(Class(ALL), 0, None)


def whole_pattern(pattern: str) -> str:
    """For an answer that matches from its first to its last character."""
    return _write(_without_anchors(_Reader(pattern).read(), True, True))


def string_pattern(pattern: str, *, is_plain: bool) -> str:
    """For a string that contains a match, as `pattern` in JSON Schema; written with anchors.

    Of what JSON escapes, strings may hold what takes one character after the backslash; with
    `is_plain` nothing. llguidance would read NUL in a class as all escapes.
    """
    kept = _only(string_tree(pattern), UNESCAPED if is_plain else SHORT_ESCAPES)
    if kept is None:
        what = "a quote, a backslash or a control" if is_plain else "a control"
        raise RegexRefused(
            f"it needs {what} character, and this backend cannot escape them in a pattern"
        )
    return anchored(kept)


def string_tree(pattern: str) -> Node:
    """The whole strings that contain a match, without anchors."""
    return _without_anchors(_unanchored(_Reader(pattern).read()), True, True)


def anchored(node: Node) -> str:
    """The pattern of a tree, for a whole string."""
    return f"^(?:{_write(node)})$"


# ------------------------------------------------------------------ reading


class _Reader:
    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._depth = 0

    def read(self) -> Node:
        node = self._choice()
        if self._at < len(self._text):
            raise self._refused("an unopened `)`")
        return node

    def _choice(self) -> Node:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise self._refused(f"groups nested more than {MOST_DEPTH} deep")
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        self._depth -= 1
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            parts.append(self._repeated(self._atom()))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _atom(self) -> Node:
        char = self._next()
        if char == "(":
            return self._group()
        if char == "[":
            return Class(self._class())
        if char == ".":
            return Class(_minus(LINE_ENDS))
        if char in "^$":
            return Anchor(char == "^")
        if char == "\\":
            return Class(self._escape(in_class=False))
        if char in "*+?":
            raise self._refused(f"`{char}` with nothing to repeat")
        if char == "{":
            raise self._refused("a bare `{`, which flavours read differently; escape it")
        return _char(char)

    def _group(self) -> Node:
        if self._take("?"):
            kind = self._next()
            if kind == "P" or (kind == "<" and self._peek() not in "=!"):
                if kind == "P" and not self._take("<"):
                    raise self._refused("a reference to a group")
                self._until(">")
            elif kind != ":":
                what = "looking ahead or behind" if kind in "=!<" else "a group with flags"
                raise self._refused(what)
        node = self._choice()
        if not self._take(")"):
            raise self._refused("an unclosed `(`")
        return node

    def _repeated(self, node: Node) -> Node:
        char = self._peek()
        if char and char in "*+?":
            self._at += 1
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
        elif char == "{":
            self._at += 1
            least, most = self._bounds()
        else:
            return node
        if isinstance(node, Anchor):
            raise self._refused("a repeated anchor")
        self._take("?")  # a lazy repetition takes other matches, not other texts
        if self._peek() and self._peek() in "*+?{":
            raise self._refused("a repetition of a repetition, which flavours read differently")
        return Repeat(node, least, most)

    def _bounds(self) -> tuple[int, int | None]:
        least, comma, most = self._until("}").partition(",")
        if not _is_number(least) or (most and not _is_number(most)):
            raise self._refused("a `{` that begins no {m}, {m,} or {m,n}; escape it")
        low = int(least)
        high = low if not comma else int(most) if most else None
        if max(low, high or 0) > MOST_REPEATS:
            raise self._refused(f"more than {MOST_REPEATS} repeats")
        if high is not None and high < low:
            raise self._refused("a repetition whose bounds are reversed")
        return low, high

    def _class(self) -> Ranges:
        is_negated = self._take("^")
        found: list[tuple[int, int]] = []
        outside = ALL  # what all flavours count out of the shorthands
        is_first = True
        while is_first or self._peek() != "]":
            if is_first and self._peek() == "]":
                raise self._refused("a class that begins with `]`; escape it")
            is_first = False
            low = self._class_item()
            if low in OPPOSITES and is_negated:
                outside = _common(outside, OPPOSITES[low])
                continue
            if len(low) == 1 and low[0][0] == low[0][1] and self._range_follows():
                self._at += 1
                high = self._class_item()
                if len(high) != 1 or high[0][0] != high[0][1] or high[0][0] < low[0][0]:
                    raise self._refused("a range in a class that is none")
                low = ((low[0][0], high[0][0]),)
            found.extend(low)
        self._at += 1
        ranges = _merged(found)
        return _common(_minus(ranges), outside) if is_negated else ranges

    def _range_follows(self) -> bool:
        return self._text[self._at : self._at + 1] == "-" and self._text[
            self._at + 1 : self._at + 2
        ] not in ("]", "")

    def _class_item(self) -> Ranges:
        char = self._next("an unclosed `[`")
        if char == "\\":
            return self._escape(in_class=True)
        if self._peek() and f"{char}{self._peek()}" in ("[:", "[.", "[=", "&&", "--", "~~"):
            raise self._refused(
                f"`{char}{self._peek()}` in a class, which flavours read differently; escape it"
            )
        return ((ord(char), ord(char)),)

    def _escape(self, *, in_class: bool) -> Ranges:
        char = self._next("a backslash at its end")
        if char.lower() in "dws":
            return SHORTHANDS[char]
        if char in CONTROLS:
            return ((CONTROLS[char],) * 2,)
        if char in "xu":
            code = self._code(char)
            return ((code, code),)
        if char in PUNCTUATION:
            return ((ord(char), ord(char)),)
        names = {"b": "word boundaries", "B": "word boundaries", "p": "\\p{…}", "P": "\\P{…}"}
        what = "back-references" if char.isdigit() else names.get(char, f"`\\{char}`")
        raise self._refused(f"{what}{' in a class' if in_class else ''}")

    def _code(self, kind: str) -> int:
        digits = self._until("}") if self._take("{") else self._take_many(2 if kind == "x" else 4)
        if not digits or len(digits) > 6 or any(d not in "0123456789abcdefABCDEF" for d in digits):
            raise self._refused(f"`\\{kind}` without its hexadecimal digits")
        code = int(digits, 16)
        if 0xD800 <= code <= 0xDBFF and _LOW_HALF.match(self._text, self._at):
            low = int(self._text[self._at + 2 : self._at + 6], 16)
            self._at += 6
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
        if 0xD800 <= code <= 0xDFFF or code > LAST:
            raise self._refused(f"`\\{kind}{digits}`, which is no character")
        return code

    def _next(self, at_end: str = "an unclosed `(`") -> str:
        if self._at >= len(self._text):
            raise self._refused(at_end)
        self._at += 1
        return self._text[self._at - 1]

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, char: str) -> bool:
        if self._peek() != char:
            return False
        self._at += 1
        return True

    def _take_many(self, count: int) -> str:
        self._at += count
        return self._text[self._at - count : self._at]

    def _until(self, end: str) -> str:
        stop = self._text.find(end, self._at)
        if stop < 0:
            raise self._refused(f"a missing `{end}`")
        taken, self._at = self._text[self._at : stop], stop + 1
        return taken

    def _refused(self, what: str) -> RegexRefused:
        return RegexRefused(f"at character {self._at} of the pattern: {what} cannot be honoured")


# ------------------------------------------------------------------ anchors


def _unanchored(node: Node) -> Node:
    """What contains a match: anything stands where the pattern has no anchor."""
    if isinstance(node, Choice):
        return Choice(tuple(_unanchored(option) for option in node.options))
    parts: list[Node] = [node]
    if not _is_anchored(node, is_start=True):
        parts.insert(0, ANYTHING)
    if not _is_anchored(node, is_start=False):
        parts.append(ANYTHING)
    return Sequence(tuple(parts))


def _is_anchored(node: Node, *, is_start: bool) -> bool:
    """Whether every match begins, or ends, where the text does."""
    if isinstance(node, Anchor):
        return node.is_start == is_start
    if isinstance(node, Sequence) and node.parts:
        outermost = node.parts if is_start else reversed(node.parts)
        for part in outermost:
            if _is_anchored(part, is_start=is_start):
                return True
            if not isinstance(part, Anchor):
                return False
    if isinstance(node, Choice):
        anchored = {_is_anchored(option, is_start=is_start) for option in node.options}
        if len(anchored) == 2:
            raise RegexRefused(
                "an anchor in some alternatives of a group and not in others cannot be honoured; "
                "write the whole pattern as alternatives, each with its anchors"
            )
        return anchored == {True}
    return False


def _without_anchors(node: Node, at_start: bool, at_end: bool) -> Node:
    """The same texts, where an anchor can only stand at the edge of the text."""
    if isinstance(node, Anchor):
        if not (at_start if node.is_start else at_end):
            raise RegexRefused(
                f"`{'^' if node.is_start else '$'}` amid the pattern cannot be honoured; anchors "
                "stand at its beginning and its end"
            )
        return Sequence(())
    if isinstance(node, Choice):
        return Choice(tuple(_without_anchors(option, at_start, at_end) for option in node.options))
    if isinstance(node, Repeat):
        is_once = node.least == node.most == 1
        return Repeat(
            _without_anchors(node.part, at_start and is_once, at_end and is_once),
            node.least,
            node.most,
        )
    if isinstance(node, Sequence):
        return Sequence(tuple(_edges(node.parts, at_start, at_end)))
    return node


def _edges(parts: tuple[Node, ...], at_start: bool, at_end: bool) -> list[Node]:
    last = max((i for i, part in enumerate(parts) if not _is_empty(part)), default=-1)
    written: list[Node] = []
    for index, part in enumerate(parts):
        written.append(_without_anchors(part, at_start, at_end and index >= last))
        at_start = at_start and _is_empty(part)
    return written


def _is_empty(node: Node) -> bool:
    """Whether it matches no character, whatever the text is."""
    if isinstance(node, Choice):
        return all(_is_empty(option) for option in node.options)
    if isinstance(node, Sequence):
        return all(_is_empty(part) for part in node.parts)
    return isinstance(node, Anchor)


# ------------------------------------------------------------------ characters


def _only(node: Node, allowed: Ranges) -> Node | None:
    """The matches that consist of these characters; None: there are none."""
    if isinstance(node, Class):
        ranges = _common(node.ranges, allowed)
        return Class(ranges) if ranges else None
    if isinstance(node, Sequence):
        parts = [_only(part, allowed) for part in node.parts]
        kept_parts = tuple(part for part in parts if part is not None)
        return Sequence(kept_parts) if len(kept_parts) == len(parts) else None
    if isinstance(node, Choice):
        kept = tuple(
            option for option in (_only(o, allowed) for o in node.options) if option is not None
        )
        return Choice(kept) if kept else None
    if isinstance(node, Repeat):
        part = _only(node.part, allowed)
        if part is None:
            return Sequence(()) if node.least == 0 else None
        return Repeat(part, node.least, node.most)
    return node


def _char(char: str) -> Class:
    return Class(((ord(char), ord(char)),))


def _merged(ranges: list[tuple[int, int]]) -> Ranges:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def _minus(taken: Ranges) -> Ranges:
    """All characters but these."""
    left, low = [], 0
    for start, end in taken:
        left.append((low, start - 1))
        low = end + 1
    left.append((low, LAST))
    return _common(tuple(part for part in left if part[0] <= part[1]), ALL)


@_kept
def _common(a: Ranges, b: Ranges) -> Ranges:
    both = [(max(x[0], y[0]), min(x[1], y[1])) for x in a for y in b]
    return _merged([part for part in both if part[0] <= part[1]])


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


# ------------------------------------------------------------------ writing


def _write(node: Node) -> str:
    if isinstance(node, Class):
        return _write_class(node.ranges)
    if isinstance(node, Sequence):
        return "".join(
            f"(?:{_write(part)})" if isinstance(part, Choice) else _write(part)
            for part in node.parts
        )
    if isinstance(node, Choice):
        return "|".join(_write(option) for option in node.options)
    assert isinstance(node, Repeat), "anchors were taken out"
    part = _write(node.part)
    if not isinstance(node.part, Class):
        part = f"(?:{part})"
    marks = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    mark = marks.get((node.least, node.most))
    if mark is None:
        most = "" if node.most is None else str(node.most)
        mark = f"{{{node.least}}}" if node.least == node.most else f"{{{node.least},{most}}}"
    return part + mark


@_kept
def _write_class(ranges: Ranges) -> str:
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _write_char(ranges[0][0])
    written = (
        _write_char(low) if low == high else f"{_write_char(low)}-{_write_char(high)}"
        for low, high in ranges
    )
    return f"[{''.join(written)}]"


def _write_char(code: int) -> str:
    """As every library reads it, in a class and outside."""
    if chr(code).isalnum() and code < 0x80:
        return chr(code)
    return f"\\u{{{code:x}}}"
