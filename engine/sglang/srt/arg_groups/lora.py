"""Adapters: which there are, and how many at a time."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated as A
from typing import Any

from sglang.srt.arg_groups.declaration import Bound, Choices, Group, Needs
from sglang.srt.extension_points import LORA_EVICTION_POLICIES

GROUP = Group("adapters (LoRA)")
TARGET_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ALL_MODULES = "all"
_KEYS = ("lora_name", "lora_path", "pinned")


@dataclass
class LoRAArgs:
    """What requests may name besides the model itself."""

    enable_lora: A[bool, GROUP, "Serve LoRA adapters; --lora-paths implies it."] = False
    lora_paths: A[
        list[Any] | None,
        GROUP,
        "Adapters to load at the start: NAME=PATH, PATH, or a JSON object with lora_name, "
        "lora_path and pinned; several.",
    ] = None
    max_lora_rank: A[
        int | None,
        GROUP,
        Needs("enable_lora"),
        Bound(ge=1),
        "Largest rank of an adapter; default: of those of --lora-paths.",
    ] = None
    lora_target_modules: A[
        list[str] | None,
        GROUP,
        Needs("enable_lora"),
        f"What adapters may change: {', '.join(TARGET_MODULES)}, or all; default: what those of "
        "--lora-paths change.",
    ] = None
    max_loras_per_batch: A[
        int,
        GROUP,
        Needs("enable_lora"),
        Bound(ge=1, le=256),
        "Different adapters in one pass, each with a place on the device.",
    ] = 8
    max_loaded_loras: A[
        int | None,
        GROUP,
        Needs("enable_lora"),
        Bound(ge=1),
        "Adapters in host memory; for one more, the one unused for longest goes, until it is asked "
        "for again. Default: no limit.",
    ] = None
    lora_eviction_policy: A[
        str,
        GROUP,
        Needs("enable_lora"),
        Choices(lambda: LORA_EVICTION_POLICIES.names()),
        "Which adapter gives its place on the device to another.",
    ] = "lru"
    lora_drain_wait_threshold: A[
        float,
        GROUP,
        Needs("enable_lora"),
        Bound(ge=0),
        "Seconds that a request waits for a place on the device before later ones that use other "
        "adapters wait too; 0: as long as it takes.",
    ] = 0.0


@dataclass(frozen=True)
class LoRAPath:
    """An adapter that is loaded at the start."""

    lora_name: str
    lora_path: str
    pinned: bool = False


def fill_lora(args: LoRAArgs) -> None:
    """Programs may give a dictionary of paths by name, and a set of modules."""
    given: Any = args.lora_paths
    if isinstance(given, Mapping):
        args.lora_paths = [f"{name}={path}" for name, path in given.items()]
    targets: Any = args.lora_target_modules
    if isinstance(targets, set | frozenset | tuple):
        args.lora_target_modules = sorted(targets)
    if args.lora_paths:
        args.enable_lora = True


def check_lora(args: LoRAArgs, served_model_name: str, speculative_algorithm: str | None) -> None:
    """ValueError where the options of adapters contradict each other, or others."""
    if not args.enable_lora:
        return
    if ":" in served_model_name:
        raise ValueError(
            f"--served-model-name must not contain a colon beside adapters, which requests name as "
            f"MODEL:ADAPTER; got {served_model_name!r}"
        )
    paths = lora_paths_of(args)
    targets = args.lora_target_modules
    if not paths and (args.max_lora_rank is None or not targets):
        raise ValueError(
            "--enable-lora without --lora-paths needs --max-lora-rank and --lora-target-modules, "
            "which say how large adapters may be"
        )
    for name in targets or ():
        if name not in (*TARGET_MODULES, ALL_MODULES):
            raise ValueError(
                f"--lora-target-modules must be among {', '.join(TARGET_MODULES)}, {ALL_MODULES}; "
                f"got {name!r}"
            )
    _check_counts(args, paths)
    if (speculative_algorithm or "NONE").upper() not in ("NONE", "NGRAM"):
        raise ValueError(
            f"--enable-lora goes with --speculative-algorithm NGRAM or none, not with "
            f"{speculative_algorithm}"
        )


def _check_counts(args: LoRAArgs, paths: list[LoRAPath]) -> None:
    names = [path.lora_name for path in paths]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"--lora-paths: the name {name!r} is given twice")
    num_pinned = sum(path.pinned for path in paths)
    if num_pinned >= args.max_loras_per_batch:
        raise ValueError(
            f"--lora-paths: {num_pinned} adapters are pinned; fewer than --max-loras-per-batch "
            f"({args.max_loras_per_batch}) may be"
        )
    if args.max_loaded_loras is None:
        return
    if args.max_loaded_loras < args.max_loras_per_batch:
        raise ValueError(
            f"--max-loaded-loras ({args.max_loaded_loras}) must be at least --max-loras-per-batch "
            f"({args.max_loras_per_batch})"
        )
    if len(paths) > args.max_loaded_loras:
        raise ValueError(
            f"--lora-paths names {len(paths)} adapters, --max-loaded-loras allows "
            f"{args.max_loaded_loras}"
        )


def lora_paths_of(args: LoRAArgs) -> list[LoRAPath]:
    """ValueError: an entry of --lora-paths that is neither of its forms."""
    return [_parsed(entry) for entry in args.lora_paths or ()]


def _parsed(entry: Any) -> LoRAPath:
    if isinstance(entry, str) and not entry.lstrip().startswith("{"):
        name, sign, path = entry.partition("=")
        return _checked(LoRAPath(name, path if sign else name), entry)
    try:
        given = json.loads(entry) if isinstance(entry, str) else entry
    except json.JSONDecodeError as error:
        raise ValueError(f"--lora-paths: {entry} is not valid JSON: {error}") from None
    if not isinstance(given, Mapping):
        given = {key: getattr(given, key, None) for key in _KEYS}
    unknown = [key for key in given if key not in _KEYS]
    if unknown:
        raise ValueError(f"--lora-paths: unknown key {unknown[0]!r}; allowed: {', '.join(_KEYS)}")
    pinned = given.get("pinned") or False
    return _checked(LoRAPath(given.get("lora_name"), given.get("lora_path"), pinned), entry)


def _checked(path: LoRAPath, entry: Any) -> LoRAPath:
    texts = (path.lora_name, path.lora_path)
    if not all(isinstance(text, str) and text for text in texts) or path.pinned not in (
        True,
        False,
    ):
        raise ValueError(
            f"--lora-paths: {entry!r} must be NAME=PATH, PATH, or an object with lora_name, "
            "lora_path and pinned (true or false)"
        )
    return path
