"""Forbids the tokens that a request's grammar does not allow next."""

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from sglang.srt.core.batch import ScheduleBatch
from sglang.srt.core.messages import grammar_failed
from sglang.srt.core.request import Req

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FilledMask:
    """What the grammars of `reqs` allow next: row `i` of `mask` is about `reqs[i]`."""

    reqs: list[Req]
    mask: Any  # in the form of the backend; None: it could not be made


class GrammarMasks:
    """Fills the masks of a pass in a thread of its own while the model computes.

    `begin` before the pass and `apply` after it are called by whoever computes, once each. A mask
    that nobody began is filled when it is applied; the tokens are the same.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sglang-grammar-mask")
        self._begun: Future[FilledMask | None] | None = None

    def begin(self, batch: ScheduleBatch, vocab_size: int, device: torch.device) -> None:
        """Starts on the masks of the rows that will get a token."""
        self._begun = None
        if any(req.grammar for req in batch.reqs):
            self._begun = self._thread.submit(_fill_for, batch, vocab_size, device)

    def apply(self, logits: torch.Tensor, rows: Sequence[int], reqs: Sequence[Req]) -> None:
        """Changes the logits in place; the grammar of `reqs[i]` rules over row `rows[i]`.

        A grammar object allocates, fills, moves and applies masks as `BaseGrammarObject` says; all
        objects of a server come from one backend, so the first one speaks for all. A request whose
        grammar fails is marked to finish, and the token drawn for it is not used.
        """
        # logits: [batch_size, vocab]
        begun, self._begun = self._begun, None
        filled = begun.result() if begun is not None else None
        if filled is None or filled.reqs != list(reqs):
            filled = fill_masks(reqs, logits.shape[1], logits.device)
        if filled.mask is None:
            return
        first = reqs[0].grammar
        try:
            is_mixed = len(rows) < logits.shape[0]
            own = logits[list(rows)] if is_mixed else logits
            first.apply_vocab_mask(own, first.move_vocab_mask(filled.mask, logits.device))
            if is_mixed:
                logits[list(rows)] = own
            _check(own, reqs)
        except Exception as error:
            logger.exception("The grammar mask of a batch failed")
            _end_all(reqs, error)


def _fill_for(batch: ScheduleBatch, vocab_size: int, device: torch.device) -> FilledMask | None:
    batch.wait_for_history()
    rows = zip(batch.reqs, batch.layout.is_final, strict=True)
    reqs = [req for req, is_final in rows if is_masked(req, is_final)]
    return fill_masks(reqs, vocab_size, device) if reqs else None


def is_masked(req: Req, is_final: bool) -> bool:
    """Whether the row has a grammar and its token counts: an answer may have ended when the step
    after it was under way.
    """
    return req.grammar is not None and is_final and not req.finished


def fill_masks(reqs: Sequence[Req], vocab_size: int, device: torch.device) -> FilledMask:
    """Never raises: requests whose mask cannot be made are marked to finish."""
    try:
        mask = reqs[0].grammar.allocate_vocab_mask(vocab_size, len(reqs), device)
    except Exception as error:
        logger.exception("The grammar mask of a batch failed")
        _end_all(reqs, error)
        return FilledMask(list(reqs), None)
    for index, req in enumerate(reqs):
        try:
            req.grammar.fill_vocab_mask(mask, index)
        except Exception as error:
            logger.exception("The grammar of %s failed", req.rid)
            req.to_finish = grammar_failed(error)
    return FilledMask(list(reqs), mask)


def _check(masked: torch.Tensor, reqs: Sequence[Req]) -> None:
    """A token is left for each request, or it ends: any choice would break its constraint."""
    # masked: [len(reqs), vocab]
    is_broken = ~masked.amax(-1).isfinite()
    for req, broken in zip(reqs, is_broken.tolist(), strict=True):
        if broken and req.to_finish is None:
            req.to_finish = grammar_failed(ValueError("it allows no token"))


def _end_all(reqs: Sequence[Req], error: Exception) -> None:
    for req in reqs:
        req.to_finish = grammar_failed(error)
