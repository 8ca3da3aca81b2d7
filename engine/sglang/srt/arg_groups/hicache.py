"""The tiers below the KV pool: host memory, and storage below that."""

import importlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated as A
from typing import Any

from sglang.srt.arg_groups.declaration import Bound, Choices, Group, Needs
from sglang.srt.arg_groups.memory import MemoryArgs
from sglang.srt.extension_points import HICACHE_STORAGE_BACKENDS

GROUP = Group("hierarchical cache")
DEFAULT_RATIO = 2.0
WRITE_THROUGH, WRITE_THROUGH_SELECTIVE, WRITE_BACK = WRITE_POLICIES = (
    "write_through",
    "write_through_selective",
    "write_back",
)
LAYER_FIRST, PAGE_FIRST = MEM_LAYOUTS = ("layer_first", "page_first")
BEST_EFFORT, WAIT_COMPLETE, TIMEOUT = PREFETCH_POLICIES = (
    "best_effort",
    "wait_complete",
    "timeout",
)
# Names of other engines' backends; each needs a service or a library that is not part of this one.
FOREIGN_BACKENDS = frozenset(
    ("mooncake", "hf3fs", "nixl", "aibrix", "eic", "simm", "mori", "shm", "lmcache")
)


@dataclass
class HiCacheArgs:
    """What is kept of KV that the pool has no room for, and where."""

    enable_hierarchical_cache: A[
        bool, GROUP, "Keep KV in host memory when the pool has no room for it."
    ] = False
    hicache_ratio: A[
        float | None,
        GROUP,
        Needs("enable_hierarchical_cache"),
        Bound(gt=0, le=1000),
        "Size of the host tier in sizes of the KV pool; default: 2.",
    ] = None
    hicache_size: A[
        int,
        GROUP,
        Needs("enable_hierarchical_cache"),
        Bound(ge=0),
        "Size of the host tier in GB, in place of --hicache-ratio.",
    ] = 0
    hicache_write_policy: A[
        str,
        GROUP,
        Needs("enable_hierarchical_cache"),
        Choices.of(*WRITE_POLICIES),
        "When a prefix is copied to the host: once it is computed, once another request has used "
        "it, or when the pool drops it.",
    ] = WRITE_THROUGH
    hicache_mem_layout: A[
        str,
        GROUP,
        Needs("enable_hierarchical_cache"),
        Choices.of(*MEM_LAYOUTS),
        "Whether a page or a layer lies in one piece in host memory.",
    ] = PAGE_FIRST
    hicache_storage_backend: A[
        str | None, GROUP, "Where prefixes outlive the server: file, dynamic, or a registered name."
    ] = None
    hicache_storage_prefetch_policy: A[
        str,
        GROUP,
        Needs("enable_hierarchical_cache"),
        Choices.of(*PREFETCH_POLICIES),
        "How long a request waits for what storage has of it.",
    ] = TIMEOUT
    hicache_storage_backend_extra_config: A[
        str | None,
        GROUP,
        "Settings of the storage backend: a JSON object, or @FILE (.json, .toml, .yaml).",
    ] = None


def check_hicache(args: HiCacheArgs, memory: MemoryArgs) -> None:
    """ValueError where options of the tiers contradict each other."""
    if not args.enable_hierarchical_cache:
        for flag, value in (
            ("--hicache-storage-backend", args.hicache_storage_backend),
            ("--hicache-storage-backend-extra-config", args.hicache_storage_backend_extra_config),
        ):
            if value is not None:
                raise ValueError(f"{flag} needs --enable-hierarchical-cache")
        return
    if memory.disable_radix_cache:
        raise ValueError("--enable-hierarchical-cache and --disable-radix-cache exclude each other")
    if args.hicache_storage_backend is not None:
        check_storage_name(args.hicache_storage_backend)
    read_extra_config(args.hicache_storage_backend_extra_config)


def check_storage_name(name: str) -> None:
    """ValueError for a backend that nobody registered."""
    if name in HICACHE_STORAGE_BACKENDS:
        return
    known = HICACHE_STORAGE_BACKENDS.names()
    hint = (
        " That one is not part of this engine; a package that has it can be named by the "
        "backend `dynamic`."
        if name in FOREIGN_BACKENDS
        else ""
    )
    raise ValueError(f"Unknown storage backend {name!r}. Registered backends: {known}.{hint}")


def read_extra_config(text: str | None) -> dict[str, Any]:
    """The settings of a storage backend, from JSON or from the file that `@FILE` names."""
    if not text or not text.strip():
        return {}
    what = "--hicache-storage-backend-extra-config"
    try:
        settings = _read_file(Path(text[1:])) if text.startswith("@") else json.loads(text)
    except (OSError, ValueError) as error:
        raise ValueError(f"{what} must be a JSON object or @FILE: {error}") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{what} must be an object, got {settings!r}")
    return settings


def _read_file(path: Path) -> Any:
    text = path.expanduser().read_text(encoding="utf-8")
    if path.suffix == ".json":
        return json.loads(text)
    if path.suffix in (".yaml", ".yml"):
        import yaml  # type: ignore[import-untyped]

        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(f"{path}: {error}") from error
    if path.suffix == ".toml":
        try:
            tomllib = importlib.import_module("tomllib")
        except ImportError:
            raise ValueError(f"{path}: TOML needs Python 3.11; write JSON or YAML") from None
        return tomllib.loads(text)
    raise ValueError(f"{path} must end in .json, .toml, .yaml or .yml")
