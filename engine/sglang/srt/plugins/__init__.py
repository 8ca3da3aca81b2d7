"""General plugins of installed packages: found by entry points, run once in every process.

A plugin is a function without arguments. It runs again in each process that the server starts, so
it registers hooks and names and does nothing else.
"""

import logging
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from typing import Any

from sglang.extension.entry_points import (
    FoundEntryPoint,
    LoadError,
    find_entry_points,
    load_entry_point,
)
from sglang.extension.hooks import HookSource
from sglang.srt.environ import envs
from sglang.srt.plugins.hook_registry import HookRegistry, _current_plugin_source

logger = logging.getLogger(__name__)

PLATFORM_PLUGINS_GROUP = "sglang.srt.platforms"
GENERAL_PLUGINS_GROUP = "sglang.srt.plugins"
DIFFUSION_PLATFORMS_GROUP = "sglang.multimodal_gen.platforms"
DIFFUSION_PLUGINS_GROUP = "sglang.multimodal_gen.plugins"
_NAMED_BY_SGLANG_PLUGINS = (
    GENERAL_PLUGINS_GROUP,
    DIFFUSION_PLUGINS_GROUP,
    PLATFORM_PLUGINS_GROUP,
    DIFFUSION_PLATFORMS_GROUP,
)

_plugins_loaded = False
_states: dict[tuple[str, str, str | None], str] = {}  # (group, name, distribution) → what became


def load_plugins() -> None:
    """Runs every general plugin, then applies the hooks; only the first call of a process does.

    It comes before the options are parsed and before anything is built that hooks may change. A
    plugin that fails is logged, its hooks are dropped, and the server starts without it.
    """
    global _plugins_loaded
    if _plugins_loaded:
        return
    _plugins_loaded = True
    register_plugins()
    HookRegistry.apply_hooks()


def register_plugins() -> None:
    """Runs every general plugin that `SGLANG_PLUGINS` and `SGLANG_PLATFORM` admit."""
    found = load_plugins_by_group(GENERAL_PLUGINS_GROUP, excluded_dists=_get_excluded_dists())
    for name, (plugin, distribution) in found.items():
        source = HookSource(name, distribution)
        running = _current_plugin_source.set(source)
        try:
            plugin()
        except (Exception, SystemExit) as error:  # a plugin does not end the server
            logger.exception("The %s failed and is left out.", source)
            HookRegistry.discard(source)
            state = _failure(error)
        else:
            state = "loaded"
        finally:
            _current_plugin_source.reset(running)
        _states[GENERAL_PLUGINS_GROUP, name, distribution] = state


def load_plugins_by_group(
    group: str, excluded_dists: Iterable[str] | None = None
) -> dict[str, tuple[Callable[[], Any], str | None]]:
    """Name → (callable, distribution) of a group's entry points, imported.

    Left out are names that `SGLANG_PLUGINS` does not list, distributions in `excluded_dists`, and,
    with a logged error, what cannot be imported. Of two packages with one name the first one in
    the order of distributions counts.
    """
    allowed, excluded = _allowed_names(), frozenset(excluded_dists or ())
    plugins: dict[str, tuple[Callable[[], Any], str | None]] = {}
    for found in find_entry_points(group, entry_points):
        state, plugin = "imported", None
        if allowed and found.name not in allowed:
            state = "off: SGLANG_PLUGINS does not list it"
        elif found.distribution in excluded:
            state = "off: its package holds another platform than SGLANG_PLATFORM"
        elif found.name in plugins:
            state = f"off: {plugins[found.name][1]} has a plugin of that name"
            logger.warning("The plugin %s is left out: %s.", found, state)
        else:
            state, plugin = _imported(found)
        _states[group, found.name, found.distribution] = state
        if plugin is not None:
            plugins[found.name] = plugin, found.distribution
    return plugins


def plugin_state(found: FoundEntryPoint) -> str | None:
    """What became of an entry point in this process; None if nobody looked at it."""
    return _states.get((found.group, found.name, found.distribution))


def _imported(found: FoundEntryPoint) -> tuple[str, Callable[[], Any] | None]:
    plugin = load_entry_point(found)
    if isinstance(plugin, LoadError):
        logger.error("The plugin %s", plugin, exc_info=plugin.error)
        return _failure(plugin.error), None
    if not callable(plugin):
        state = f"failed: it is {plugin!r}, and not a function without arguments"
        logger.error("The plugin %s %s", found, state)
        return state, None
    return "imported", plugin


def _failure(error: BaseException) -> str:
    return f"failed: {type(error).__name__}: {' '.join(str(error).split())}"


def _allowed_names() -> frozenset[str]:
    """The names in `SGLANG_PLUGINS`; none means that all are allowed."""
    text = envs.SGLANG_PLUGINS.get() or ""
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    if names:
        known = {
            found.name
            for group in _NAMED_BY_SGLANG_PLUGINS
            for found in find_entry_points(group, entry_points)
        }
        for name in sorted(names - known):
            installed = ", ".join(sorted(known)) or "none"
            logger.warning("SGLANG_PLUGINS: no plugin %r is installed (are: %s).", name, installed)
    return names


def _get_excluded_dists() -> set[str]:
    """Distributions that hold other platforms than the one that `SGLANG_PLATFORM` names.

    Their general plugins would import a vendor's runtime that is not wanted here.
    """
    selected = envs.SGLANG_PLATFORM.get()
    if not selected:
        return set()
    platforms = find_entry_points(PLATFORM_PLUGINS_GROUP, entry_points)
    own = {found.distribution for found in platforms if found.name == selected}
    if not own:
        installed = ", ".join(sorted({found.name for found in platforms})) or "none"
        message = (
            "SGLANG_PLATFORM: no platform %r is installed (are: %s); plugins of those stay off."
        )
        logger.warning(message, selected, installed)
    return {found.distribution for found in platforms if found.distribution} - own
