"""The command line, the variables and the config file of a set of options, and their order."""

import argparse
import difflib
import importlib.util
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, NoReturn

from sglang.srt import environ
from sglang.srt.arg_groups.absent import why_absent
from sglang.srt.arg_groups.declaration import Option

CONFIG_FLAG = "--config"
NEAR = 0.75  # share of letters in common; less suggests flags that nobody meant
_UNSET: Any = object()


@dataclass(frozen=True)
class Settings:
    """What the user set, by option name, and where. `extra` are flags that are no options."""

    values: dict[str, Any]
    origins: dict[str, str]
    extra: dict[str, Any]


class OptionParser(argparse.ArgumentParser):
    """argparse without abbreviations; a mistake is one sentence on stderr and code 2."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs
        )

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def make_parser(prog: str) -> OptionParser:
    """A parser for `--config`, to which options are added."""
    made = OptionParser(
        prog=prog,
        usage=f"{prog} --model-path MODEL [options]",
        description="Each option can also come from a variable SGLANG_<NAME> or a --config file.",
    )
    made.add_argument(
        CONFIG_FLAG, metavar="FILE", help="YAML, TOML or JSON file; keys are flags without dashes."
    )
    return made


def add_options(target: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    """Adds a flag per option, under its group's heading."""
    groups: dict[str, Any] = {}
    for option in options:
        if option.group not in groups:
            groups[option.group] = target.add_argument_group(option.group)
        _add_flag(groups[option.group], option)


def _add_flag(group: Any, option: Option) -> None:
    default = None if option.default is MISSING else option.default
    shown = "" if default in (None, False, "") else f" (default: {default})"
    common = {"dest": option.name, "default": default, "help": escape(option.help + shown)}
    if option.kind is bool:
        group.add_argument(*option.flags, action="store_true", **common)
        return

    def convert(text: str) -> Any:
        try:
            value = option.parse(text)
            option.check(value)
        except ValueError as error:
            message = str(error).removeprefix(f"{option.flag} ").removeprefix(f"{option.flag}: ")
            raise argparse.ArgumentTypeError(message) from None
        return value

    metavar = option.name.upper()
    if option.choices is not None:
        metavar = "{" + ",".join(option.choices.names()) + "}"
    if option.kind is list:  # `--flag a,b` and `--flag a b` alike
        common |= {"nargs": "+", "action": _JoinLists}
    group.add_argument(*option.flags, type=convert, metavar=metavar, **common)


class _JoinLists(argparse.Action):
    """One list of the lists that a flag's arguments are."""

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        joined = [part for value in values if value is not None for part in value]
        setattr(namespace, self.dest, joined if any(v is not None for v in values) else None)


def escape(text: str) -> str:
    """argparse formats help with `%`."""
    return text.replace("%", "%%")


def collect(parser: OptionParser, argv: Sequence[str], options: Sequence[Option]) -> Settings:
    """What flags, variables and the config file set; the earlier source wins.

    The parser may have more flags than `options`, which plugins have added.
    """
    parser.set_defaults(**{option.name: _UNSET for option in options})
    namespace, rest = parser.parse_known_args(list(argv))
    if rest:
        parser.error(unknown_argument(rest[0], options))
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    try:
        config = read_config(namespace.config, options) if namespace.config else {}
        for option in options:
            value, origin = _first_set(option, getattr(namespace, option.name), config)
            if origin:
                values[option.name], origins[option.name] = value, origin
    except (ValueError, OSError) as error:
        parser.error(str(error))
    known = {option.name for option in options} | {"config"}
    extra = {name: value for name, value in vars(namespace).items() if name not in known}
    return Settings(values, origins, extra)


def _first_set(option: Option, flag: Any, config: Mapping[str, Any]) -> tuple[Any, str]:
    if flag is not _UNSET:
        return flag, f"flag {option.flag}"
    variable = option.variable
    text = environ.read_variable(variable)
    if text is not None:
        try:
            value = option.parse(text)
            option.check(value)
        except ValueError as error:
            raise ValueError(f"{variable}: {error}") from None
        return value, f"variable {variable}"
    if option.name in config:
        return config[option.name], "config file"
    return None, ""


def read_config(path: str, options: Sequence[Option]) -> dict[str, Any]:
    """The options of a config file. An unknown key raises ValueError with the nearest name."""
    by_name = {flag[2:].replace("-", "_"): option for option in options for flag in option.flags}
    values = {}
    where = f"{CONFIG_FLAG} {path}"
    for key, value in _read_mapping(Path(path), where).items():
        name = str(key).replace("-", "_")
        if name not in by_name:
            raise ValueError(f"{where}: {unknown_argument('--' + str(key), options)}")
        option = by_name[name]
        try:
            option.check(value)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        values[option.name] = value
    return values


def _read_mapping(path: Path, where: str) -> dict[Any, Any]:
    read = _FORMATS.get(path.suffix)
    if read is None:
        raise ValueError(f"{where}: a config file ends in {', '.join(_FORMATS)}")
    try:
        data = read(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{where}: {error.strerror}") from None
    except ValueError as error:  # also text that is not UTF-8; YAML's takes several lines
        raise ValueError(f"{where}: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise ValueError(f"{where}: expected a mapping of options, got {type(data).__name__}")
    return data


def _read_yaml(text: str) -> Any:
    import yaml  # type: ignore[import-untyped]

    try:
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _read_toml(text: str) -> Any:
    if importlib.util.find_spec("tomllib") is None:
        raise ValueError("a .toml config file needs Python 3.11 or newer; use .yaml or .json")
    return importlib.import_module("tomllib").loads(text)


_FORMATS: dict[str, Callable[[str], Any]] = {
    ".yaml": _read_yaml,
    ".yml": _read_yaml,
    ".toml": _read_toml,
    ".json": json.loads,
}


def unknown_argument(argument: str, options: Iterable[Option]) -> str:
    """The sentence for something that is no option of ours."""
    if not argument.startswith("-"):
        return f"unexpected argument {argument!r}; options start with --"
    flag = argument.split("=", 1)[0].replace("_", "-")
    known = [name for option in options for name in option.flags] + [CONFIG_FLAG]
    if reason := why_absent(flag):
        return f"{flag} does not exist here: {reason}"
    by_name = {name.lstrip("-"): name for name in known}  # the dashes resemble any flag's
    nearest = difflib.get_close_matches(flag.lstrip("-"), by_name, n=1, cutoff=NEAR)
    hint = f"; did you mean {by_name[nearest[0]]}?" if nearest else "; --help lists all options"
    return f"unknown option {flag}{hint}"
