"""The metadata of an option's annotation, and the `Option` records read from a dataclass."""

import dataclasses
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from sglang.srt.environ import option_variable, parse_bool


@dataclass(frozen=True)
class Bound:
    """Numeric limits; those not given do not apply."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None

    def holds(self, value: float) -> bool:
        return (
            (self.ge is None or value >= self.ge)
            and (self.gt is None or value > self.gt)
            and (self.le is None or value <= self.le)
        )

    def __str__(self) -> str:
        parts = [
            f"{sign} {limit if isinstance(limit, int) else format(limit, 'g')}"
            for sign, limit in ((">=", self.ge), (">", self.gt), ("<=", self.le))
            if limit is not None
        ]
        return " and ".join(parts)


@dataclass(frozen=True)
class Choices:
    """The allowed texts. `source` is asked each time, so names registered later count."""

    source: Callable[[], Iterable[str]]
    # Names that people know from elsewhere, each with what to do instead.
    absent: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, *values: str) -> "Choices":
        return cls(lambda: values)

    def names(self) -> tuple[str, ...]:
        return tuple(self.source())


@dataclass(frozen=True)
class Alias:
    """Another flag of the same option."""

    flag: str


@dataclass(frozen=True)
class Group:
    """The heading under which `--help` shows an option."""

    title: str


@dataclass(frozen=True)
class Secret:
    """The value is never printed or reported."""


@dataclass(frozen=True)
class Needs:
    """The switch, by its field's name, without which the option changes nothing."""

    switch: str


@dataclass(frozen=True)
class Option:
    """One option of the server, whichever source it comes from."""

    name: str
    kind: type  # str, int, float, bool, or list (of str)
    default: Any
    help: str
    group: str
    nullable: bool = False
    aliases: tuple[str, ...] = ()
    bound: Bound | None = None
    choices: Choices | None = None
    secret: bool = False
    needs: str | None = None  # the switch without which it changes nothing
    variable_name: str = ""  # where it is not the usual one

    @property
    def variable(self) -> str:
        """The environment variable that sets the option."""
        return self.variable_name or option_variable(self.name)

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def flags(self) -> tuple[str, ...]:
        return (self.flag, *self.aliases)

    def parse(self, text: str) -> Any:
        """A value from a flag's or a variable's text. ValueError says what is allowed."""
        if self.nullable and text.strip().lower() in ("none", "null"):
            return None
        if self.kind is bool:
            return parse_bool(text)
        if self.kind is str:
            return text
        if self.kind is list:
            if text.lstrip().startswith("{"):  # one JSON object
                return [text.strip()]
            return [part.strip() for part in text.split(",") if part.strip()]
        try:
            return self.kind(text)
        except ValueError:
            raise ValueError(f"expected {_KIND_WORDS[self.kind]}, got {text!r}") from None

    def check_type(self, value: Any) -> None:
        """ValueError when the value's type is wrong."""
        if (value is None and self.nullable) or _is_kind(value, self.kind):
            return
        expected = _KIND_WORDS[self.kind] + (" or none" if self.nullable else "")
        given = f"a value of type {type(value).__name__}" if self.secret else repr(value)
        raise ValueError(f"{self.flag}: expected {expected}, got {given}")

    def check(self, value: Any) -> None:
        """ValueError when the value's type, bound or choice is wrong."""
        self.check_type(value)
        if value is None:
            return
        if self.bound is not None and not self.bound.holds(value):
            raise ValueError(f"{self.flag} must be {self.bound}, got {value}")
        if self.choices is not None and value not in self.choices.names():
            allowed = ", ".join(self.choices.names())
            hint = self.choices.absent.get(value)
            raise ValueError(
                f"{self.flag} must be one of {allowed}; got {value!r}"
                + (f": {hint}" if hint else "")
            )


_KIND_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    list: "a list",
}


def _is_kind(value: Any, kind: type) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)


def options_of(declaring: type) -> tuple[Option, ...]:
    """The options that a dataclass declares, in its order. Fields without a `Group` are none."""
    hints = get_type_hints(declaring, include_extras=True)
    options = []
    for field in dataclasses.fields(declaring):
        hint = hints[field.name]
        if get_origin(hint) is Annotated:
            options.append(_option_from(field, *get_args(hint)))
    return tuple(options)


def without_switch(values: Any, options: Iterable[Option]) -> list[str]:
    """A sentence for each option that differs from its default and waits for a switch."""
    switches = {option.name: option.flag for option in options}
    return [
        f"{option.flag} changes nothing without {switches[option.needs]}."
        for option in options
        if option.needs is not None
        and getattr(values, option.name) != option.default
        and not getattr(values, option.needs)
    ]


def _option_from(field: "dataclasses.Field[Any]", hint: Any, *metadata: Any) -> Option:
    kind, nullable = _kind_of(hint)

    def first(wanted: type) -> Any:
        return next((item for item in metadata if isinstance(item, wanted)), None)

    return Option(
        name=field.name,
        kind=kind,
        default=field.default,
        help=first(str),
        group=first(Group).title,
        nullable=nullable,
        aliases=tuple(item.flag for item in metadata if isinstance(item, Alias)),
        bound=first(Bound),
        choices=first(Choices),
        secret=first(Secret) is not None,
        needs=needed.switch if (needed := first(Needs)) is not None else None,
    )


def _kind_of(hint: Any) -> tuple[type, bool]:
    if get_origin(hint) in (Union, types.UnionType):
        (kind,) = (arg for arg in get_args(hint) if arg is not type(None))
        return get_origin(kind) or kind, True
    return get_origin(hint) or hint, False
