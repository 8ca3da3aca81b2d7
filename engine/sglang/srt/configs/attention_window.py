"""How far back each layer of a model attends."""

from typing import Any

ALL_TOKENS = -1


def layer_windows(config: dict[str, Any]) -> tuple[int, ...]:
    """Per layer the tokens that are attended to, the query's own among them; -1: all.

    Empty for a model that attends to everything. `layer_types` of config.json decides; files
    without it are read as their model type demands.
    """
    window = config.get("sliding_window")
    if not window or not config.get("use_sliding_window", True):
        return ()
    kinds = config.get("layer_types") or _kinds_of_type(config)
    windows = tuple(int(window) if kind == "sliding_attention" else ALL_TOKENS for kind in kinds)
    return windows if any(w != ALL_TOKENS for w in windows) else ()


def _kinds_of_type(config: dict[str, Any]) -> list[str]:
    layers = range(int(config["num_hidden_layers"]))
    model_type = config.get("model_type")
    if model_type == "gemma2":
        return ["full_attention" if layer % 2 else "sliding_attention" for layer in layers]
    if model_type in ("qwen2", "qwen3"):
        first = int(config.get("max_window_layers") or 0)
        return ["sliding_attention" if layer >= first else "full_attention" for layer in layers]
    return ["sliding_attention" for _ in layers]
