"""An engine for language models. Importing it is cheap; what is heavy is imported when used."""

import importlib
from typing import Any

# Public name → the module that has it.
_HOMES = {
    "__version__": "sglang.version",
    "Anthropic": "sglang.lang.backend.anthropic",
    "Crusoe": "sglang.lang.backend.crusoe",
    "Engine": "sglang.srt.entrypoints.engine",
    "LiteLLM": "sglang.lang.backend.litellm",
    "OpenAI": "sglang.lang.backend.openai",
    "Runtime": "sglang.lang.backend.runtime",
    "RuntimeEndpoint": "sglang.lang.backend.runtime_endpoint",
    "ServerArgs": "sglang.srt.server_args",
    "VertexAI": "sglang.lang.backend.vertexai",
    "global_config": "sglang.lang.global_config",
    "greedy_token_selection": "sglang.lang.choices",
    "token_length_normalized": "sglang.lang.choices",
    "unconditional_likelihood_normalized": "sglang.lang.choices",
    **dict.fromkeys(
        (
            "assistant",
            "assistant_begin",
            "assistant_end",
            "flush_cache",
            "function",
            "gen",
            "gen_int",
            "gen_string",
            "get_server_info",
            "image",
            "select",
            "separate_reasoning",
            "set_default_backend",
            "system",
            "system_begin",
            "system_end",
            "user",
            "user_begin",
            "user_end",
            "video",
        ),
        "sglang.lang.api",
    ),
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
