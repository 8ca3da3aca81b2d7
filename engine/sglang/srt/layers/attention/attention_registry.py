"""Attention backends by name; plugins add theirs here."""

from collections.abc import Callable
from typing import Any

from sglang.extension.registry import source_of
from sglang.srt.extension_points import ATTENTION_BACKENDS
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.attention.hybrid_backend import HybridAttnBackend

__all__ = [
    "ATTENTION_BACKENDS",
    "attention_backend_for",
    "create_attention_backend",
    "register_attention_backend",
]

# factory(runner) -> AttentionBackend; the runner has model_config, config, device and dtype.
AttentionBackendFactory = Callable[[Any], AttentionBackend]


def register_attention_backend(
    name: str,
) -> Callable[[AttentionBackendFactory], AttentionBackendFactory]:
    """Decorator of a factory(runner). A taken name is replaced, with a warning."""

    def decorator(factory: AttentionBackendFactory) -> AttentionBackendFactory:
        ATTENTION_BACKENDS.register(name, factory, source=source_of(factory), replace=True)
        return factory

    return decorator


def attention_backend_for(runner: Any) -> AttentionBackend:
    """The backend that the runner's options choose, or one that holds two, one per phase."""
    chosen = runner.config.attention_backend
    prefill = runner.config.prefill_attention_backend or chosen
    decode = runner.config.decode_attention_backend or chosen
    if prefill == decode:
        return create_attention_backend(prefill, runner)
    return HybridAttnBackend(
        create_attention_backend(prefill, runner), create_attention_backend(decode, runner)
    )


def create_attention_backend(name: str, runner: Any) -> AttentionBackend:
    """The backend of that name for this runner; an unknown name is a ValueError."""
    if name not in ATTENTION_BACKENDS:
        known = ", ".join(sorted(ATTENTION_BACKENDS))
        raise ValueError(f"Invalid attention backend: {name}. Registered: {known}.")
    return ATTENTION_BACKENDS[name](runner)
