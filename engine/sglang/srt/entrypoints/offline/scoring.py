"""Scores of items: how likely each label is as the next token."""

import math
from collections.abc import Sequence
from typing import Any

from sglang.srt.entrypoints.offline.answers import Json

TextOrIds = str | Sequence[int]
ONE_TOKEN = {"max_new_tokens": 1, "temperature": 0.0}  # its row has the labels' logprobs


def score_prompts(
    query: TextOrIds, items: TextOrIds | Sequence[TextOrIds], item_first: bool
) -> list[TextOrIds]:
    """One prompt per item: query and item, or item and query; all texts, or all token ids."""
    if not items:
        raise ValueError("items must not be empty")
    head: Any = query if isinstance(query, str) else list(query)
    many: list[Any] = [items] if isinstance(items, str) else list(items)
    if isinstance(many[0], int):
        many = [many]
    many = [list(item) if isinstance(item, tuple) else item for item in many]
    if not all(isinstance(item, type(head)) for item in many):
        raise ValueError(
            "query and items must be texts, or both token ids: a text with a list of texts, or a "
            "list of ids with a list of such lists"
        )
    return [item + head if item_first else head + item for item in many]


def check_labels(label_token_ids: Sequence[int], vocab_size: int) -> None:
    """Raises ValueError."""
    if not label_token_ids:
        raise ValueError("label_token_ids must hold at least one token id, got none")
    for token_id in label_token_ids:
        if not 0 <= token_id < vocab_size:
            raise ValueError(
                f"label_token_ids must be ids of the vocabulary, 0 … {vocab_size - 1}; "
                f"got {token_id}"
            )


def scores_of(answers: Sequence[Json], apply_softmax: bool) -> list[list[float]]:
    """Per item the labels' probabilities, or with `apply_softmax` their shares of each other."""
    scores = []
    for answer in answers:
        row = answer["meta_info"]["output_token_ids_logprobs"][0]
        values = [math.exp(logprob) for logprob, _, _ in row]
        if apply_softmax:
            most = max(logprob for logprob, _, _ in row)
            shares = [math.exp(logprob - most) for logprob, _, _ in row]
            values = [share / sum(shares) for share in shares]
        scores.append(values)
    return scores
