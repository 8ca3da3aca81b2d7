"""What a model is: sizes, rotary settings, context length and end tokens, read from its files."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sglang.srt.configs.attention_window import ALL_TOKENS, layer_windows
from sglang.srt.configs.experts_config import ExpertsConfig
from sglang.srt.configs.gguf_config import read_gguf_config
from sglang.srt.configs.json_file import read_json
from sglang.srt.configs.latent_config import LatentConfig
from sglang.srt.configs.rope_config import RopeConfig
from sglang.srt.configs.token_ids import token_ids_of, tokenizer_end_tokens, tokenizer_size
from sglang.srt.environ import envs

# Keys of generation_config.json that are sampling parameters under the same name.
_SAMPLING_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
# Model types whose query, key and value have biases though config.json does not say so.
_BIASED_ATTENTION = frozenset(("qwen2",))
# Model types whose head is the embedding's table unless config.json says otherwise.
_TIED_EMBEDDINGS = frozenset(("gemma2",))


@dataclass(frozen=True)
class ModelConfig:
    """The model's own settings; nothing here is chosen by whoever starts the server.

    Token ids at or above `vocab_size` do not exist for the tokenizer: weights may have
    `padded_vocab_size` rows, but the surplus is never computed.
    """

    model_path: Path  # folder in the HF layout, or a .gguf file
    architectures: tuple[str, ...]
    model_type: str
    vocab_size: int
    padded_vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    context_len: int  # longest prompt plus answer, in tokens
    hidden_act: str = "silu"
    tie_word_embeddings: bool = False
    attention_bias: bool = False  # of the q, k and v projections
    attention_output_bias: bool = False
    mlp_bias: bool = False
    layer_windows: tuple[int, ...] = ()  # see `window_of`
    attn_logit_cap: float = 0.0  # scores become cap * tanh(score / cap); 0: they stay
    final_logit_cap: float = 0.0  # the same of logits
    query_scale_dim: int | None = None  # scores are divided by its root; None: by head_dim's
    latent: LatentConfig | None = None
    experts: ExpertsConfig | None = None
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    pad_token_id: int | None = None
    dtype: str | None = None  # what the weights were saved in
    default_sampling_params: dict[str, float | int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.vocab_size <= self.padded_vocab_size
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"{self.model_path}: {self.num_attention_heads} attention heads cannot be shared "
                f"out to {self.num_key_value_heads} key/value heads: not a multiple."
            )

    def window_of(self, layer_id: int) -> int:
        """Tokens that the layer attends to, the query's own among them; -1: all."""
        return self.layer_windows[layer_id] if self.layer_windows else ALL_TOKENS

    @property
    def rotary_dim(self) -> int:
        """Numbers of a head that are rotated."""
        return self.latent.qk_rope_head_dim if self.latent is not None else self.head_dim

    @property
    def is_gguf(self) -> bool:
        return self.model_path.suffix == ".gguf"

    @classmethod
    def from_path(cls, model_path: Path, context_length: int | None = None) -> "ModelConfig":
        """Of a folder with config.json, a .gguf file, or a folder that holds one .gguf file.

        `context_length` overrides what the model says; longer than that needs
        SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1.
        """
        path = locate_model(model_path)
        if path.suffix == ".gguf":
            config = _with_generation_config(cls(model_path=path, **read_gguf_config(path)))
        else:
            config = _from_folder(path)
        return replace(config, context_len=_context_len(config.context_len, context_length))


def locate_model(path: Path) -> Path:
    """The folder with config.json, or the one .gguf file; else an error that says what is there."""
    if path.is_file() and path.suffix == ".gguf":
        return path
    if not path.is_dir():
        raise FileNotFoundError(
            f"model path {str(path)!r} is neither a folder nor a .gguf file on this machine."
        )
    if (path / "config.json").is_file() and not _only_gguf_weights(path):
        return path
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    found = ", ".join(file.name for file in files) or "neither"
    raise ValueError(
        f"model folder {str(path)!r} must hold config.json with .safetensors weights, or exactly "
        f"one .gguf file; found: {found}. Name one .gguf file itself to choose it."
    )


def _only_gguf_weights(path: Path) -> bool:
    # A folder made by `sglang download` has the GGUF file and the converted text files together.
    return any(path.glob("*.gguf")) and not any(path.glob("*.safetensors"))


def _from_folder(path: Path) -> ModelConfig:
    config = read_json(path / "config.json")
    generation = read_json(path / "generation_config.json")
    tokenizer = read_json(path / "tokenizer.json")
    _require_keys(path, config)
    heads = int(config["num_attention_heads"])
    padded = int(config["vocab_size"])
    end_tokens = (
        token_ids_of(generation.get("eos_token_id"))
        + token_ids_of(config.get("eos_token_id"))
        + tokenizer_end_tokens(tokenizer, read_json(path / "tokenizer_config.json"))
    )
    return ModelConfig(
        model_path=path,
        architectures=tuple(config["architectures"]),
        model_type=str(config.get("model_type", "")),
        vocab_size=min(padded, tokenizer_size(tokenizer) or padded),
        padded_vocab_size=padded,
        hidden_size=int(config["hidden_size"]),
        intermediate_size=int(config["intermediate_size"]),
        num_hidden_layers=int(config["num_hidden_layers"]),
        num_attention_heads=heads,
        num_key_value_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or int(config["hidden_size"]) // heads),
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope=RopeConfig.from_hf(config),
        context_len=int(config.get("max_position_embeddings", 2048)),
        hidden_act=str(config.get("hidden_activation") or config.get("hidden_act", "silu")),
        tie_word_embeddings=bool(
            config.get("tie_word_embeddings", config.get("model_type") in _TIED_EMBEDDINGS)
        ),
        attention_bias=bool(
            config.get("attention_bias", config.get("model_type") in _BIASED_ATTENTION)
        ),
        attention_output_bias=bool(config.get("attention_bias", False)),
        mlp_bias=bool(config.get("mlp_bias", False)),
        layer_windows=layer_windows(config),
        attn_logit_cap=float(config.get("attn_logit_softcapping") or 0.0),
        final_logit_cap=float(config.get("final_logit_softcapping") or 0.0),
        query_scale_dim=config.get("query_pre_attn_scalar"),
        latent=LatentConfig.from_hf(config),
        experts=ExpertsConfig.from_hf(config),
        eos_token_ids=tuple(dict.fromkeys(end_tokens)),
        bos_token_id=_first(token_ids_of(config.get("bos_token_id"))),
        pad_token_id=_first(token_ids_of(config.get("pad_token_id"))),
        dtype=config.get("dtype") or config.get("torch_dtype"),
        default_sampling_params=_sampling_defaults(generation),
    )


def _with_generation_config(config: ModelConfig) -> ModelConfig:
    """Adds what a generation_config.json beside a GGUF file says."""
    generation = read_json(config.model_path.parent / "generation_config.json")
    end_tokens = [*config.eos_token_ids, *token_ids_of(generation.get("eos_token_id"))]
    return replace(
        config,
        eos_token_ids=tuple(dict.fromkeys(end_tokens)),
        default_sampling_params=_sampling_defaults(generation),
    )


def _sampling_defaults(generation: dict[str, Any]) -> dict[str, float | int]:
    return {key: generation[key] for key in _SAMPLING_KEYS if generation.get(key) is not None}


def _require_keys(path: Path, config: dict[str, Any]) -> None:
    needed = (
        "architectures",
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
    )
    missing = [key for key in needed if config.get(key) is None]
    if missing:
        raise ValueError(
            f"{path / 'config.json'} lacks {', '.join(missing)}; "
            "it does not describe a text model that can be served."
        )


def _context_len(trained: int, wanted: int | None) -> int:
    if wanted is None:
        return trained
    if wanted < 1:
        raise ValueError(f"context_length must be at least 1, got {wanted}.")
    if wanted > trained and not envs.SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN.get():
        raise ValueError(
            f"context_length {wanted} is longer than the model's own {trained}. Choose at most "
            f"{trained}, or set {envs.SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN.name}=1."
        )
    return wanted


def _first(ids: list[int]) -> int | None:
    return ids[0] if ids else None
