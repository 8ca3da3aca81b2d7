"""The gateway's options as a dataclass, made from the schema that the compiled gateway gives."""

import argparse
from dataclasses import field, make_dataclass
from typing import Any, TypeVar

from sglang_router.sglang_router_rs import option_schema

TYPES: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str, "list": list}
PREFIX = "router-"
HOST_AND_PORT = ("host", "port")

Args = TypeVar("Args", bound="CommandLineOptions")


class CommandLineOptions:
    """How the dataclass meets `argparse` and the gateway."""

    @staticmethod
    def add_cli_args(
        parser: argparse.ArgumentParser,
        use_router_prefix: bool = False,
        exclude_host_port: bool = False,
    ) -> None:
        """Adds every option, as `--router-NAME` where another program has flags of its own."""
        groups: dict[str, Any] = {}
        for option in option_schema():
            if exclude_host_port and option["name"] in HOST_AND_PORT:
                continue
            title = option["group"] or "Gateway"
            if title not in groups:
                groups[title] = parser.add_argument_group(title)
            flags = [option["flag"], *option["aliases"]]
            if use_router_prefix:
                flags = [flag.replace("--", "--" + PREFIX, 1) for flag in flags]
            dest = destination(option["name"], use_router_prefix)
            groups[title].add_argument(*flags, dest=dest, **argument(option))

    @classmethod
    def from_cli_args(
        cls: type[Args], args: argparse.Namespace, use_router_prefix: bool = False
    ) -> Args:
        """Takes what `add_cli_args` has put into the namespace, and defaults for the rest."""
        given = {
            option["name"]: getattr(args, destination(option["name"], use_router_prefix))
            for option in option_schema()
            if hasattr(args, destination(option["name"], use_router_prefix))
        }
        return cls(**given)

    def to_options(self) -> dict[str, Any]:
        """The options that differ from their defaults; the environment counts for the rest."""
        return {
            option["name"]: getattr(self, option["name"])
            for option in option_schema()
            if getattr(self, option["name"]) != option["default"]
        }


def destination(name: str, use_router_prefix: bool) -> str:
    return f"{PREFIX.replace('-', '_')}{name}" if use_router_prefix else name


def argument(option: dict[str, Any]) -> dict[str, Any]:
    """What `add_argument` is to know about an option."""
    common = {"default": option["default"], "help": (option["help"] or "").replace("%", "%%")}
    if option["type"] == "bool":
        on_by_default = option["default"]
        action = argparse.BooleanOptionalAction if on_by_default else "store_true"
        return {**common, "action": action}
    if option["type"] == "list":
        return {**common, "nargs": "+"}
    return {**common, "type": TYPES[option["type"]], "choices": option["choices"]}


def dataclass_field(option: dict[str, Any]) -> tuple[str, Any, Any]:
    kind: Any = TYPES[option["type"]]
    default = option["default"]
    if option["type"] == "list":
        return option["name"], list[str], field(default_factory=lambda: list(default or ()))
    return option["name"], kind if default is not None else kind | None, field(default=default)


RouterArgs: Any = make_dataclass(
    "RouterArgs",
    [dataclass_field(option) for option in option_schema()],
    bases=(CommandLineOptions,),
    namespace={
        "__module__": __name__,
        "__doc__": "Every option of the gateway, by its flag's name.",
    },
)
