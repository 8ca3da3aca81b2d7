"""`sglang plugins list`: what can be plugged in, what is, where it comes from, and its state."""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

HELP = """usage: sglang plugins list

Prints one line per name of every extension point: seam, name, source, state. General plugins are
run to see what they register, as a server does when it starts; their hooks are not applied."""
NOTHING = "-"


class Row(NamedTuple):
    """One line of the list."""

    seam: str
    name: str
    source: str
    state: str


def run(argv: Sequence[str]) -> int:
    if list(argv) != ["list"]:
        asked = bool(argv) and argv[0] in ("-h", "--help")
        print(HELP, file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    print("\n".join(lines(rows())))
    return 0


def rows() -> list[Row]:
    """Seam by seam. General plugins come first, since they register what the others show."""
    from sglang.srt import plugins

    plugins.register_plugins()
    return [
        *_or_nothing("general plugin", _general_plugins()),
        *_or_nothing("hook", _hooks()),
        *_or_nothing("serve backend", _serve_backends()),
        *_registries(),
        *_or_nothing("model override", _model_overrides()),
        *_or_nothing("model architecture", _models()),
        *_unused_groups(),
    ]


def lines(rows: Iterable[Row]) -> list[str]:
    """Columns as wide as their longest cell."""
    table = [Row("SEAM", "NAME", "SOURCE", "STATE"), *rows]
    widths = [max(len(row[column]) for row in table) for column in range(3)]
    return [
        "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row.state])
        for row in table
    ]


def _or_nothing(seam: str, found: Iterable[Row]) -> list[Row]:
    return list(found) or [Row(seam, NOTHING, NOTHING, "nothing registered")]


def _general_plugins() -> list[Row]:
    from sglang.extension.entry_points import find_entry_points
    from sglang.srt.plugins import GENERAL_PLUGINS_GROUP, plugin_state

    return [
        Row("general plugin", found.name, _package(found.distribution), plugin_state(found) or "")
        for found in find_entry_points(GENERAL_PLUGINS_GROUP)
    ]


def _hooks() -> list[Row]:
    from sglang.srt.plugins.hook_registry import HookRegistry

    return [
        Row("hook", hook.target, str(hook.source or NOTHING), f"registered, {hook.kind.name}")
        for hook in HookRegistry.registered()
    ]


def _serve_backends() -> list[Row]:
    from sglang.cli.builtin_backends import BUILTIN_BACKENDS
    from sglang.cli.serve_backends import SERVE_BACKENDS_GROUP
    from sglang.extension.entry_points import find_entry_points

    built_in = [Row("serve backend", name, "sglang", "built in") for name in BUILTIN_BACKENDS]
    return built_in + [
        Row("serve backend", found.name, _package(found.distribution), "loaded when selected")
        for found in find_entry_points(SERVE_BACKENDS_GROUP)
    ]


def _registries() -> list[Row]:
    from sglang.extension.registry import Registry
    from sglang.srt import extension_points

    shown: list[Row] = []
    for registry in vars(extension_points).values():
        if isinstance(registry, Registry):
            shown += _or_nothing(registry.kind, _names_of(registry.kind, registry, registry.source))
    return shown


def _names_of(seam: str, names: Iterable[str], source_of: Callable[[str], str]) -> list[Row]:
    return [
        Row(seam, name, source_of(name), "built in" if _is_ours(source_of(name)) else "registered")
        for name in sorted(names)
    ]


def _is_ours(source: str) -> bool:
    return source.partition(":")[0].partition(".")[0] == "sglang"


def _model_overrides() -> list[Row]:
    from sglang.srt.arg_groups.overrides import declared_overrides

    return [Row("model override", name, who, "registered") for name, who in declared_overrides()]


def _models() -> list[Row]:
    from sglang.srt.models.registry import ModelRegistry

    names = ModelRegistry.get_supported_archs()
    return _names_of("model architecture", names, ModelRegistry.models.source)


def _unused_groups() -> list[Row]:
    """Entry points that no part of this version asks for: whoever installed them should know."""
    from sglang.extension.entry_points import find_entry_points
    from sglang.srt import plugins

    groups = (
        plugins.PLATFORM_PLUGINS_GROUP,
        plugins.DIFFUSION_PLATFORMS_GROUP,
        plugins.DIFFUSION_PLUGINS_GROUP,
    )
    return [
        Row(
            f"entry point of {group}",
            found.name,
            _package(found.distribution),
            "not used by this version",
        )
        for group in groups
        for found in find_entry_points(group)
    ]


def _package(distribution: str | None) -> str:
    return distribution or "(unnamed package)"
