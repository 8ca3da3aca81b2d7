"""Forbids the tokens that a request's grammar does not allow next."""

from collections.abc import Sequence
from typing import Any

import torch


def mask_by_grammar(logits: torch.Tensor, rows: Sequence[int], grammars: Sequence[Any]) -> None:
    """Changes the logits in place; `grammars[i]` rules over row `rows[i]`.

    A grammar object allocates, fills, moves and applies masks as `BaseGrammarObject` says; all
    objects of a server come from one backend, so the first one speaks for all.
    """
    # logits: [batch_size, vocab]
    first = grammars[0]
    mask = first.allocate_vocab_mask(logits.shape[1], len(rows), logits.device)
    for index, grammar in enumerate(grammars):
        grammar.fill_vocab_mask(mask, index)
    own = logits[list(rows)]
    first.apply_vocab_mask(own, first.move_vocab_mask(mask, logits.device))
    logits[list(rows)] = own
