"""The KV pool and the prefix cache."""

from dataclasses import dataclass
from typing import Annotated as A

from sglang.srt.arg_groups.declaration import Alias, Bound, Choices, Group
from sglang.srt.extension_points import EVICTION_POLICIES

GROUP = Group("memory")
COUNT = Bound(ge=1)
# Types that need no table of scales beside them; mxfp8, nvfp4 and the other fp4 types do.
KV_CACHE_DTYPE_CHOICES = ["auto", "bf16", "bfloat16", "fp8_e5m2", "fp8_e4m3"]


@dataclass
class MemoryArgs:
    """How much memory KV gets, in which pages, and what is kept of it."""

    mem_fraction_static: A[
        float | None,
        GROUP,
        Bound(gt=0, le=1),
        "Share of free memory for weights and KV; default: KV gets half of what is free once the "
        "weights are loaded, at most 4 GiB.",
    ] = None
    max_total_tokens: A[
        int | None, GROUP, COUNT, "Tokens of the KV pool; default: what memory allows."
    ] = None
    page_size: A[int, GROUP, COUNT, "Tokens per KV page."] = 1
    kv_cache_dtype: A[
        str,
        GROUP,
        Choices(lambda: KV_CACHE_DTYPE_CHOICES),
        "Type that keys and values are kept in; auto is the type of --dtype. The fp8 types take "
        "half of bfloat16's memory and change answers slightly.",
    ] = "auto"
    swa_full_tokens_ratio: A[
        float,
        GROUP,
        Bound(gt=0, le=1),
        "With --disable-radix-cache, for models with windows in some layers: tokens of these "
        "layers' pool per token of the others'.",
    ] = 0.8
    disable_radix_cache: A[bool, GROUP, "Do not reuse KV between requests."] = False
    radix_cache_backend: A[
        str | None,
        GROUP,
        # Not checked here: programs may register one after they have parsed the options.
        "Name of a registered prefix cache; default: the built-in one.",
    ] = None
    radix_eviction_policy: A[
        str,
        GROUP,
        Alias("--eviction-policy"),
        Choices(lambda: EVICTION_POLICIES),
        "What the prefix cache drops first.",
    ] = "lru"


def check_memory(args: MemoryArgs) -> None:
    """ValueError where options of the pool or the prefix cache contradict each other."""
    if args.max_total_tokens is not None and args.max_total_tokens < args.page_size:
        raise ValueError(
            f"--max-total-tokens must be at least one page, --page-size = {args.page_size}, "
            f"got {args.max_total_tokens}"
        )
    if args.disable_radix_cache and args.radix_cache_backend is not None:
        raise ValueError("--radix-cache-backend and --disable-radix-cache exclude each other")
