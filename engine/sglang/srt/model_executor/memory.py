"""What one token of KV costs, and how many tokens fit into the memory that is left."""

import ctypes
import logging
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import torch

from sglang.srt.configs.attention_window import ALL_TOKENS
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.mem_cache.memory_pool import KVDims
from sglang.srt.mem_cache.swa_memory import LEAST_TRIMMED

logger = logging.getLogger(__name__)

# Without a wish the CPU pool takes this share of what is available after the weights are loaded,
# and no more than the limit: a machine without an accelerator is rarely the engine's alone.
_CPU_SHARE = 0.5
_CPU_LIMIT_BYTES = 4 << 30
_ACCELERATOR_FRACTION = 0.85


@dataclass(frozen=True)
class MemoryPlan:
    """Size of the KV pool. `max_total_num_tokens` is a multiple of the page size."""

    max_total_num_tokens: int
    cell_bytes: int  # KV of one token over all layers

    @property
    def pool_bytes(self) -> int:
        return self.max_total_num_tokens * self.cell_bytes


@dataclass(frozen=True)
class MemoryWishes:
    """What the operator said about memory; None: nothing."""

    page_size: int = 1
    mem_fraction_static: float | None = None
    max_total_tokens: int | None = None
    window_share: float | None = None  # see `KVDims`; None: one pool for all layers
    longest_pass: int | None = None  # new tokens of one request in a pass; None: no limit


def plan_pools(
    config: ModelConfig,
    dtype: torch.dtype,
    weight_bytes: int,
    device: torch.device,
    wishes: MemoryWishes,
) -> tuple[KVDims, MemoryPlan]:
    """What is kept of a token as `dtype`, and of how many tokens.

    A second pool for layers with a window is left out if a request alone could fill it.
    """
    one_pool = kv_dims_of(config, dtype)
    dims = _with_window_pool(one_pool, config, wishes)
    plan = plan_memory(dims.cell_bytes, weight_bytes, device, wishes)
    if dims.window_layers:
        size = dims.window_tokens(plan.max_total_num_tokens, wishes.page_size)
        assert wishes.longest_pass is not None, "else there is no second pool"
        # The tokens of two passes under way and of the next one, with the window before them.
        needed = dims.window_len + 3 * (wishes.longest_pass + wishes.page_size) + LEAST_TRIMMED
        if size < needed:
            logger.info(
                "All layers share one KV pool: one for layers with a window would have %d tokens, "
                "and a request may need %d.",
                size,
                needed,
            )
            dims = one_pool
            plan = plan_memory(dims.cell_bytes, weight_bytes, device, wishes)
    return dims, plan


def _with_window_pool(dims: KVDims, config: ModelConfig, wishes: MemoryWishes) -> KVDims:
    windows = config.layer_windows
    layers = frozenset(layer for layer, window in enumerate(windows) if window != ALL_TOKENS)
    if not layers or len(layers) == dims.num_layers or dims.latent_rank:
        return dims
    if wishes.window_share is None:
        logger.info(
            "Layers with a window keep all tokens, so that prefixes can be shared; with "
            "--disable-radix-cache they get a smaller pool."
        )
        return dims
    if wishes.longest_pass is None:
        logger.info(
            "Layers with a window keep all tokens, as a whole prompt may come in one pass; with "
            "--chunked-prefill-size they get a smaller pool."
        )
        return dims
    return replace(
        dims, window_layers=layers, window_len=max(windows), window_share=wishes.window_share
    )


def kv_dims_of(config: ModelConfig, dtype: torch.dtype) -> KVDims:
    """What the model's layers keep of a token in one pool."""
    layers, latent = config.num_hidden_layers, config.latent
    if latent is not None:
        return KVDims(layers, 1, latent.latent_dim, dtype, latent.kv_lora_rank)
    return KVDims(layers, config.num_key_value_heads, config.head_dim, dtype)


def plan_memory(
    cell_bytes: int, weight_bytes: int, device: torch.device, wishes: MemoryWishes
) -> MemoryPlan:
    """Called when the weights are loaded and the pool is not.

    With a fraction: (memory that was free before loading) * fraction - weights. Without one: on an
    accelerator the same with 0.85; on a CPU half of what is available now, at most 4 GiB.
    `max_total_tokens` lowers the result, and on a CPU without a fraction it may also raise it to
    all that is available.
    """
    available = available_bytes(device)
    fraction = wishes.mem_fraction_static
    if fraction is None and device.type != "cpu":
        fraction = _ACCELERATOR_FRACTION
    if fraction is not None:
        budget = int((available + weight_bytes) * fraction) - weight_bytes
    elif wishes.max_total_tokens is not None:
        budget = available
    else:
        budget = min(int(available * _CPU_SHARE), _CPU_LIMIT_BYTES)
    num_tokens = budget // cell_bytes
    if wishes.max_total_tokens is not None:
        num_tokens = min(num_tokens, wishes.max_total_tokens)
    num_tokens = num_tokens // wishes.page_size * wishes.page_size
    if num_tokens < wishes.page_size:
        raise ValueError(
            f"Not enough memory for the KV pool: {available / 2**30:.2f} GiB are available after "
            f"the weights ({weight_bytes / 2**30:.2f} GiB), one token needs {cell_bytes} bytes and "
            f"a page has {wishes.page_size} tokens. Raise mem_fraction_static or "
            "max_total_tokens, or serve a smaller model."
        )
    return MemoryPlan(int(num_tokens), cell_bytes)


def available_bytes(device: torch.device) -> int:
    """Memory that can still be taken; on a CPU the container's limit counts too."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min(int(psutil.virtual_memory().available), _container_bytes())


def return_free_memory(device: torch.device) -> None:
    """To the system, or to the device's other users: what was freed but is kept for reuse."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:  # glibc has it
        trim(0)


def _container_bytes() -> int:
    limit = _read_number(Path("/sys/fs/cgroup/memory.max"))
    used = _read_number(Path("/sys/fs/cgroup/memory.current"))
    if limit is None or used is None:
        return 1 << 62
    return max(limit - used + _reclaimable_bytes(), 0)


def _reclaimable_bytes() -> int:
    # Files that the kernel may drop, such as the mapped weights, count as used.
    try:
        lines = Path("/sys/fs/cgroup/memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    stats = dict(line.split(" ", 1) for line in lines)
    return int(stats.get("inactive_file", 0)) + int(stats.get("active_file", 0))


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None  # no such file on this system, or "max"
