"""Token ids that the text files of a model name: end tokens, and how many tokens there are."""

from typing import Any


def token_ids_of(value: Any) -> list[int]:
    """An id, a list of ids or nothing, as configuration files write it."""
    if value is None:
        return []
    return [int(item) for item in value] if isinstance(value, list) else [int(value)]


def tokenizer_size(tokenizer: dict[str, Any]) -> int | None:
    """Highest id of a tokenizer.json plus one; None when it is empty."""
    if not tokenizer:
        return None
    vocab = _vocab(tokenizer)
    # Unigram models list their pieces in the order of the ids, the others map text to id.
    highest = len(vocab) - 1 if isinstance(vocab, list) else max(vocab.values(), default=-1)
    added = [int(token["id"]) for token in tokenizer.get("added_tokens", [])]
    return max([highest, *added]) + 1


def tokenizer_end_tokens(tokenizer: dict[str, Any], config: dict[str, Any]) -> list[int]:
    """The id of `eos_token` of a tokenizer_config.json, looked up in the tokenizer.json."""
    token = config.get("eos_token")
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, str):
        return []
    for added in tokenizer.get("added_tokens", []):
        if added.get("content") == text:
            return [int(added["id"])]
    vocab = _vocab(tokenizer)
    return [int(vocab[text])] if isinstance(vocab, dict) and text in vocab else []


def _vocab(tokenizer: dict[str, Any]) -> Any:
    return tokenizer.get("model", {}).get("vocab", {})
