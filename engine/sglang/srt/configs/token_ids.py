"""Token ids that the text files of a model name: end tokens, and how many tokens there are."""

import json
from pathlib import Path
from typing import Any


def token_ids_of(value: Any) -> list[int]:
    """An id, a list of ids or nothing, as configuration files write it."""
    if value is None:
        return []
    return [int(item) for item in value] if isinstance(value, list) else [int(value)]


def tokenizer_size(folder: Path) -> int | None:
    """Highest id of tokenizer.json plus one; None when there is no such file."""
    tokenizer = _read(folder / "tokenizer.json")
    if tokenizer is None:
        return None
    vocab = tokenizer.get("model", {}).get("vocab", {})
    # Unigram models list their pieces in the order of the ids, the others map text to id.
    highest = len(vocab) - 1 if isinstance(vocab, list) else max(vocab.values(), default=-1)
    added = [int(token["id"]) for token in tokenizer.get("added_tokens", [])]
    return max([highest, *added]) + 1


def tokenizer_end_tokens(folder: Path) -> list[int]:
    """The id of `eos_token` of tokenizer_config.json, looked up in tokenizer.json."""
    config, tokenizer = _read(folder / "tokenizer_config.json"), _read(folder / "tokenizer.json")
    if config is None or tokenizer is None:
        return []
    token = config.get("eos_token")
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, str):
        return []
    for added in tokenizer.get("added_tokens", []):
        if added.get("content") == text:
            return [int(added["id"])]
    vocab = tokenizer.get("model", {}).get("vocab", {})
    return [int(vocab[text])] if isinstance(vocab, dict) and text in vocab else []


def _read(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    content = json.loads(path.read_text(encoding="utf-8"))
    return content if isinstance(content, dict) else None
