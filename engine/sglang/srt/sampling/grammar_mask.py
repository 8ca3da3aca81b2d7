"""Forbids the tokens that a request's grammar does not allow next."""

import logging
from collections.abc import Sequence

import torch

from sglang.srt.core.messages import grammar_failed
from sglang.srt.core.request import Req

logger = logging.getLogger(__name__)


def mask_by_grammar(logits: torch.Tensor, rows: Sequence[int], reqs: Sequence[Req]) -> None:
    """Changes the logits in place; the grammar of `reqs[i]` rules over row `rows[i]`.

    A grammar object allocates, fills, moves and applies masks as `BaseGrammarObject` says; all
    objects of a server come from one backend, so the first one speaks for all. A request whose
    grammar fails is marked to finish, and the token drawn for it is not used.
    """
    # logits: [batch_size, vocab]
    first = reqs[0].grammar
    try:
        mask = first.allocate_vocab_mask(logits.shape[1], len(rows), logits.device)
        for index, req in enumerate(reqs):
            _fill(req, mask, index)
        own = logits[list(rows)]
        first.apply_vocab_mask(own, first.move_vocab_mask(mask, logits.device))
        logits[list(rows)] = own
        _check(own, reqs)
    except Exception as error:
        logger.exception("The grammar mask of a batch failed")
        for req in reqs:
            req.to_finish = grammar_failed(error)


def _check(masked: torch.Tensor, reqs: Sequence[Req]) -> None:
    """A token is left for each request, or it ends: any choice would break its constraint."""
    # masked: [len(reqs), vocab]
    is_broken = masked.isnan().any(-1) | ~masked.isfinite().any(-1)
    for req, broken in zip(reqs, is_broken.tolist(), strict=True):
        if broken and req.to_finish is None:
            req.to_finish = grammar_failed(ValueError("it allows no token"))


def _fill(req: Req, mask: torch.Tensor, index: int) -> None:
    try:
        req.grammar.fill_vocab_mask(mask, index)
    except Exception as error:
        logger.exception("The grammar of %s failed", req.rid)
        req.to_finish = grammar_failed(error)
