"""Options that follow from the model: declared here by architecture, written by `ServerArgs`.

Whoever declares returns values and writes nothing. The options get them at the end of
`ServerArgs.__post_init__` if the model is on disk by then. A model that has to be downloaded first
is known only afterwards: then they get them in `with_model_path`, in the launcher, before they are
checked again and the scheduler starts.
"""

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from sglang.srt.arg_groups.declaration import Option

# provider(server_args, hf_config) → {field: value}
Provider = Callable[[Any, Any], dict[str, Any]]
Declaration = tuple[str, dict[str, Any]]  # who declares, and the values

# architecture → {field: value}, where nothing has to be computed
MODEL_OVERRIDES: dict[str, dict[str, Any]] = {}
_MODEL_OVERRIDE_FNS: dict[str, list[Provider]] = {}
_PREDICATE_OVERRIDE_FNS: list[tuple[Callable[[str], bool], Provider]] = []
_FIXED = ("model_path",)  # what the declarations follow from


class OverrideError(TypeError, ValueError):
    """A provider returned something else than a dict."""


def register_model_override(architecture: str) -> Callable[[Provider], Provider]:
    """Decorator of a provider(server_args, hf_config) for one architecture, named as in
    config.json. Several may be registered: each runs, and the last one to name a field sets it.

    Both arguments are read only. More about the model is in `server_args.get_model_config()`.
    """

    def decorator(fn: Provider) -> Provider:
        _MODEL_OVERRIDE_FNS.setdefault(architecture, []).append(fn)
        return fn

    return decorator


def register_model_override_predicate(
    predicate: Callable[[str], bool],
) -> Callable[[Provider], Provider]:
    """Like `register_model_override`, for every architecture whose name the predicate accepts."""

    def decorator(fn: Provider) -> Provider:
        _PREDICATE_OVERRIDE_FNS.append((predicate, fn))
        return fn

    return decorator


def has_overrides() -> bool:
    """Whether anybody has declared anything; if not, no model file need be read."""
    return bool(MODEL_OVERRIDES or _MODEL_OVERRIDE_FNS or _PREDICATE_OVERRIDE_FNS)


def declared_overrides() -> list[tuple[str, str]]:
    """For which architectures somebody declares something, and who."""
    shown = [(name, _constant(name)) for name in MODEL_OVERRIDES]
    shown += [(name, _source(fn)) for name, fns in _MODEL_OVERRIDE_FNS.items() for fn in fns]
    return shown + [(f"where {_source(p)}", _source(fn)) for p, fn in _PREDICATE_OVERRIDE_FNS]


def collect_model_override_declarations(
    architecture: str, server_args: Any, hf_config: Any
) -> list[Declaration]:
    """What is declared for the architecture, in the order in which it is written: the constant
    entry, providers of this name in the order of registration, then providers whose predicate
    holds. Something that is no dict is a TypeError that names the provider.
    """
    found: list[Declaration] = []
    if architecture in MODEL_OVERRIDES:
        found.append((_constant(architecture), MODEL_OVERRIDES[architecture]))
    providers = list(_MODEL_OVERRIDE_FNS.get(architecture, ()))
    providers += [fn for holds, fn in _PREDICATE_OVERRIDE_FNS if holds(architecture)]
    for fn in providers:
        values = fn(server_args, hf_config)
        if not isinstance(values, dict):
            raise OverrideError(
                f"model override {_source(fn)} must return a dict of option fields, got "
                f"{type(values).__name__}"
            )
        found.append((_source(fn), values))
    return found


def override(
    args: Any, declarations: list[Declaration], options: Mapping[str, Option]
) -> list[str]:
    """Writes the declared values; returns a sentence for the log about each of them.

    ValueError names who declared a wrong field or value.
    """
    written: list[str] = []
    for source, values in declarations:
        for name, value in values.items():
            _check(source, name, value, options)
            before = getattr(args, name)
            setattr(args, name, value)
            written.append(f"Model override {source}: {name} = {value!r} (was {before!r}).")
    return written


def _check(source: str, name: str, value: Any, options: Mapping[str, Option]) -> None:
    if name in _FIXED:
        raise ValueError(f"model override {source}: {name} cannot be overridden")
    if name not in options:
        near = difflib.get_close_matches(name, options, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "; the fields are those of ServerArgs"
        raise ValueError(f"model override {source}: unknown field {name!r}{hint}")
    try:
        options[name].check(value)
    except ValueError as error:
        raise ValueError(f"model override {source}: {error}") from None


def _constant(architecture: str) -> str:
    return f"MODEL_OVERRIDES[{architecture!r}]"


def _source(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__qualname__", repr(fn))
