"""A model's config.json as it stands, for code that asks it for a model's particulars."""

import copy
from pathlib import Path
from typing import Any

from sglang.srt.configs.json_file import read_json
from sglang.srt.configs.model_config import ModelConfig, locate_model


class HfConfig:
    """The keys of a config.json as attributes, which cannot be written. A missing key is an
    AttributeError, so `getattr(config, "num_experts", None)` works.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)

    def to_dict(self) -> dict[str, Any]:
        return copy.deepcopy(self.__dict__)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a model's config is read only; {name} cannot be set to {value!r}")

    def __repr__(self) -> str:
        return f"HfConfig({self.__dict__!r})"


def read_hf_config(model_path: Path) -> HfConfig:
    """Of a folder its config.json; of a GGUF file what its metadata says, under the same keys."""
    path = locate_model(model_path)
    if path.suffix != ".gguf":
        return HfConfig(read_json(path / "config.json"))
    # What the file does not say is None here, and no key in a config.json.
    unnamed = {"bos_token_id": None, "pad_token_id": None}
    return HfConfig(unnamed | config_json(ModelConfig.from_path(path)))


def named_ids(config: ModelConfig) -> dict[str, Any]:
    """The special tokens that the model has, by their keys in config.json."""
    ids = {"bos_token_id": config.bos_token_id, "pad_token_id": config.pad_token_id}
    known = {name: token_id for name, token_id in ids.items() if token_id is not None}
    return {**known, "eos_token_id": list(config.eos_token_ids)}


def config_json(config: ModelConfig) -> dict[str, Any]:
    """A config.json that says what we know of a model that brings none."""
    rope: dict[str, Any] = {"rope_type": config.rope.rope_type, "rope_theta": config.rope.theta}
    if config.rope.rope_type != "default":
        rope["factor"] = config.rope.factor
    return {
        "architectures": list(config.architectures),
        "model_type": config.model_type,
        "vocab_size": config.padded_vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "hidden_act": config.hidden_act,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope.theta,
        "rope_parameters": rope,
        "max_position_embeddings": config.context_len,
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        **named_ids(config),
    }
