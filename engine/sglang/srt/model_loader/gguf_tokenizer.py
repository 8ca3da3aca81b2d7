"""The tokenizer inside a GGUF file, as the contents of tokenizer.json and tokenizer_config.json."""

from typing import Any

from sglang.srt.configs.gguf_file import GgufFile

_CONTROL, _USER_DEFINED = 3, 4  # kinds of tokens in `tokenizer.ggml.token_type`

_LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _sequence(first: dict[str, Any], use_regex: bool) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": [first, _byte_level(use_regex)]}


_GPT2 = _byte_level(use_regex=True)
_SMOLLM = _sequence({"type": "Digits", "individual_digits": True}, use_regex=True)
_LLAMA3 = _sequence(
    {
        "type": "Split",
        "pattern": {"Regex": _LLAMA3_PATTERN},
        "behavior": "Isolated",
        "invert": False,
    },
    use_regex=False,
)
# How text is cut before merging, by the file's name for it.
_PRE_TOKENIZERS = {
    "gpt-2": _GPT2,
    "smollm": _SMOLLM,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
}


def is_convertible(file: GgufFile) -> bool:
    """Whether this module knows the kind of tokenizer: byte-level BPE, cut in a known way."""
    return (
        file.text("tokenizer.ggml.model") == "gpt2"
        and file.text("tokenizer.ggml.pre") in _PRE_TOKENIZERS
    )


def tokenizer_json(file: GgufFile) -> dict[str, Any]:
    """Of a file that `is_convertible`."""
    pre_tokenizer = _PRE_TOKENIZERS[file.text("tokenizer.ggml.pre") or ""]
    tokens = _tokens(file)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(file, tokens),
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": _post_processor(file, tokens),
        "decoder": {**_byte_level(use_regex=True), "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre_tokenizer is _LLAMA3,
            "vocab": {text: token_id for token_id, text in enumerate(tokens)},
            "merges": [merge.split(" ", 1) for merge in file.list_of(str, "tokenizer.ggml.merges")],
        },
    }


def tokenizer_config(file: GgufFile, context_len: int) -> dict[str, Any]:
    """What transformers reads beside tokenizer.json."""
    tokens = _tokens(file)
    named = {
        "bos_token": file.token_id("bos_token_id"),
        "eos_token": file.token_id("eos_token_id"),
        "pad_token": file.token_id("padding_token_id"),
        "unk_token": file.token_id("unknown_token_id"),
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context_len,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": bool(file.get("tokenizer.ggml.add_bos_token", False)),
        **{name: tokens[token_id] for name, token_id in named.items() if token_id is not None},
    }


def _tokens(file: GgufFile) -> list[str]:
    tokens = file.list_of(str, "tokenizer.ggml.tokens")
    if not tokens:
        raise ValueError(f"{file.path} lacks the metadata key tokenizer.ggml.tokens.")
    return tokens


def _added_tokens(file: GgufFile, tokens: list[str]) -> list[dict[str, Any]]:
    """Control and user-defined tokens: matched whole in any text, before it is cut."""
    types = file.list_of(int, "tokenizer.ggml.token_type")
    return [
        {
            "id": token_id,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == _CONTROL,
        }
        for token_id, (text, kind) in enumerate(zip(tokens, types, strict=False))
        if kind in (_CONTROL, _USER_DEFINED)
    ]


def _post_processor(file: GgufFile, tokens: list[str]) -> dict[str, Any] | None:
    bos_id = file.token_id("bos_token_id")
    if bos_id is None or not file.get("tokenizer.ggml.add_bos_token", False):
        return None
    bos = tokens[bos_id]
    piece = {"SpecialToken": {"id": bos, "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [piece, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [
            piece,
            {"Sequence": {"id": "A", "type_id": 0}},
            {"Sequence": {"id": "B", "type_id": 1}},
        ],
        "special_tokens": {bos: {"id": bos, "ids": [bos_id], "tokens": [bos]}},
    }
