"""Attention backends by name; plugins add theirs here."""

from collections.abc import Callable
from typing import Any

from sglang.extension.registry import source_of
from sglang.srt.extension_points import ATTENTION_BACKENDS
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend

__all__ = ["ATTENTION_BACKENDS", "create_attention_backend", "register_attention_backend"]

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


def create_attention_backend(name: str, runner: Any) -> AttentionBackend:
    """The backend of that name for this runner; an unknown name is a ValueError."""
    if name not in ATTENTION_BACKENDS:
        known = ", ".join(sorted(ATTENTION_BACKENDS))
        raise ValueError(f"Invalid attention backend: {name}. Registered: {known}.")
    return ATTENTION_BACKENDS[name](runner)
