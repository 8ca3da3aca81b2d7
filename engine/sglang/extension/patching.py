"""Puts hook chains in the place of what they name: functions, methods and classes."""

import difflib
import importlib
import inspect
import logging
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from sglang.extension.hooks import Call, Hook, HookChain, HookType

logger = logging.getLogger(__name__)


class TargetError(AttributeError):
    """A dotted name leads nowhere."""


@dataclass(frozen=True)
class FailedTarget:
    """A target that was not patched, or hooks on it that were left out."""

    hooks: tuple[Hook, ...]
    error: Exception

    def __str__(self) -> str:
        who = ", ".join(map(str, self.hooks))
        return f"hook target {self.hooks[0].target} ({who}): {self.error}"


class HookTable:
    """The hooks of one runtime in one process: first they are registered, then applied.

    Targets are dotted names of anything importable; a colon counts as a dot.
    """

    def __init__(self) -> None:
        self._chains: dict[str, HookChain] = {}
        self._patched: set[str] = set()

    def register(self, target: str, hook: Call, kind: HookType, source: object = None) -> None:
        """TypeError for a class with another kind than REPLACE, ValueError for a bad target."""
        name = target.replace(":", ".")
        if not all(part.isidentifier() for part in name.split(".")) or "." not in name:
            raise ValueError(
                f"A hook target is a dotted name such as package.module.function or "
                f"package.module:Class.method, got {target!r}."
            )
        added = Hook(name, hook, kind, source)
        self._chains.setdefault(name, HookChain(name)).add(added)
        if name in self._patched:
            logger.warning("%s is patched already; the %s comes too late.", name, added)

    def hooks(self) -> list[Hook]:
        return [hook for chain in self._chains.values() for hook in chain.hooks]

    def forget(self, source: object) -> None:
        """Drops what a source registered and nobody has applied yet."""
        for chain in self._chains.values():
            chain.forget(source)

    def apply(self) -> list[FailedTarget]:
        """Patches every target once: classes first, outer ones before what is inside them.

        Returns what could not be patched; the other targets are, all the same.
        """
        failed: list[FailedTarget] = []
        for chain in sorted(self._chains.values(), key=_class_first):
            if chain.target in self._patched or not chain.hooks:
                continue
            self._warn_if_lost(chain)
            try:
                failed += _patch(chain)
            except Exception as error:  # noqa: BLE001 - the target's modules may raise anything
                failed.append(FailedTarget(chain.hooks, error))
            else:
                self._patched.add(chain.target)
        return failed

    def reset(self) -> None:
        """Forgets hooks and what was patched, which stays patched."""
        self._chains.clear()
        self._patched.clear()

    def _warn_if_lost(self, chain: HookChain) -> None:
        owner = self._chains.get(chain.target.rpartition(".")[0])
        new_class = owner.replacement if owner else None
        if chain.replacement is not None and new_class is not None:
            logger.warning(
                "The %s on %s will override it in the class put there by the %s.",
                chain.replacement, chain.target, new_class,
            )  # fmt: skip


def _class_first(chain: HookChain) -> tuple[bool, int]:
    hook = chain.replacement
    is_class = hook is not None and isinstance(hook.call, type)
    return not is_class, chain.target.count(".") if is_class else 0


@dataclass(frozen=True)
class Place:
    """Where a target is kept: `raw` is what `name` holds there, descriptors as they are."""

    holder: Any
    name: str
    raw: Any


def find_target(target: str) -> Place:
    """Imports what is needed. TargetError says which part does not exist."""
    parts = target.split(".")
    holder, used = _import_longest(parts[:-1])
    for part in parts[used:-1]:
        holder = _attribute(holder, part, target)
    name = parts[-1]
    found = _attribute(holder, name, target)
    raw = inspect.getattr_static(holder, name) if isinstance(holder, type) else found
    return Place(holder, name, raw)


def _import_longest(parts: list[str]) -> tuple[Any, int]:
    """The innermost module that `parts` begin with, and how many parts it took."""
    for used in range(len(parts), 0, -1):
        name = ".".join(parts[:used])
        try:
            return importlib.import_module(name), used
        except ModuleNotFoundError as error:
            # NOTE: a module that exists and lacks one of its own imports is another failure.
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
    raise TargetError(f"there is no module {parts[0]!r}")


def _attribute(holder: Any, name: str, target: str) -> Any:
    try:
        return getattr(holder, name)
    except AttributeError:
        near = difflib.get_close_matches(name, dir(holder), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        where = getattr(holder, "__name__", type(holder).__name__)
        raise TargetError(f"{target} does not exist: {where} has no {name!r}{hint}") from None


def _patch(chain: HookChain) -> list[FailedTarget]:
    place = find_target(chain.target)
    left_out: list[FailedTarget] = []
    if isinstance(place.raw, type):
        new, left_out = _new_class(chain, place.raw)
    else:
        new = _new_function(chain, place.raw)
    setattr(place.holder, place.name, new)
    if isinstance(place.holder, ModuleType) or isinstance(place.raw, type):
        _propagate(place.raw, new, _packages_of(chain))
    return left_out


def _new_class(chain: HookChain, old: type) -> tuple[type, list[FailedTarget]]:
    wrong = chain.wrappers
    hook = chain.replacement
    new = old
    if hook is not None and isinstance(hook.call, type):
        new = hook.call
    elif hook is not None:
        wrong = (*wrong, hook)
    if not wrong:
        return new, []
    error = TypeError(
        f"{chain.target} is a class; only REPLACE with a class works on it, so hook one of its "
        "methods instead, such as __init__"
    )
    if new is old:
        raise error
    return new, [FailedTarget(wrong, error)]


def _new_function(chain: HookChain, raw: Any) -> Any:
    """Class and static methods stay what they are."""
    if isinstance(raw, classmethod | staticmethod):
        return type(raw)(chain.wrap(raw.__func__))
    if not callable(raw):
        raise TypeError(f"{chain.target} is neither a function nor a class, but {type(raw)}")
    return chain.wrap(raw)


def _packages_of(chain: HookChain) -> set[str]:
    """The packages that registered: there the old name must keep its meaning, or a subclass that
    calls its base by name would call itself.
    """
    own = chain.target.split(".", 1)[0]
    modules = {getattr(hook.call, "__module__", "") or "" for hook in chain.hooks}
    tops = {module.split(".", 1)[0] for module in modules}
    return modules | (tops - {own})


def _propagate(old: object, new: object, but_not: Iterable[str]) -> None:
    """Every module that imported the old object by name gets the new one."""
    spared = tuple(but_not)
    for name, module in list(sys.modules.items()):
        if name in spared or name.split(".", 1)[0] in spared:
            continue
        names = getattr(module, "__dict__", None)
        if not isinstance(names, dict):
            continue
        for key, value in list(names.items()):
            if value is old:
                names[key] = new
