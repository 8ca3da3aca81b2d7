"""Runs the custom logit processors of a batch."""

import logging
from collections.abc import Sequence

import torch

from sglang.srt.core.messages import FinishReason, described
from sglang.srt.core.request import Req

logger = logging.getLogger(__name__)

_LINE = 300  # characters of a line in the log


def process_logits(logits: torch.Tensor, rows: Sequence[int], reqs: Sequence[Req]) -> None:
    """Changes the logits in place; `rows[i]` is the row of `reqs[i]`, which has a processor.

    Requests of one processor are one call. A request whose processor fails is marked to finish,
    and the token drawn for it is not used; the others are called again without it.
    """
    # logits: [batch_size, vocab] float32
    groups: dict[int, list[int]] = {}
    for index, req in enumerate(reqs):
        groups.setdefault(id(req.logit_processor), []).append(index)
    for members in groups.values():
        _process(logits, [rows[i] for i in members], [reqs[i] for i in members])


def _process(logits: torch.Tensor, rows: list[int], reqs: list[Req]) -> None:
    try:
        processed = _call(logits[rows], reqs)
    except BaseException as error:  # noqa: BLE001 - signals do not raise here: it is the processor's
        if len(reqs) > 1:  # somebody's fault is not the others'
            for row, req in zip(rows, reqs, strict=True):
                _process(logits, [row], [req])
            return
        _end(reqs[0], error)
        _log(reqs[0], error)
        return
    logits[rows] = processed
    _check(processed, reqs)


def _call(own: torch.Tensor, reqs: list[Req]) -> torch.Tensor:
    # own: [len(reqs), vocab] float32, a copy -> like own
    shape, device = own.shape, own.device
    params = [req.logit_processor_params for req in reqs]
    processed = reqs[0].logit_processor(own, params)
    if not isinstance(processed, torch.Tensor) or processed.shape != shape:
        given = list(processed.shape) if isinstance(processed, torch.Tensor) else type(processed)
        raise ValueError(f"it must return logits of shape {list(shape)}, got {given}")
    return processed.to(device, torch.float32)


def _check(processed: torch.Tensor, reqs: list[Req]) -> None:
    # processed: [len(reqs), vocab]
    is_broken = (
        processed.isnan().any(-1) | processed.isposinf().any(-1) | ~processed.isfinite().any(-1)
    )
    for req, broken in zip(reqs, is_broken.tolist(), strict=True):
        if broken:
            _end(req, ValueError("a row needs a finite logit, and neither NaN nor +inf"))


def _log(req: Req, error: BaseException) -> None:
    """One short line where the request is to blame: there may be as many as clients like."""
    what = f"The custom logit processor {type(req.logit_processor).__name__} of {req.rid} failed"
    if _is_own(req, error):
        line = " ".join(f"{what}: {described(error)}".split())
        logger.warning("%s", line if len(line) <= _LINE else f"{line[:_LINE]}…")
        logger.debug("%s", what, exc_info=error)
    else:
        logger.error("%s", what, exc_info=error)


def _is_own(req: Req, error: BaseException) -> bool:
    """What the request brought or asked for is its own mistake; other faults are the server's."""
    return req.has_uploaded_processor or isinstance(error, ValueError)


def _end(req: Req, error: BaseException) -> None:
    if req.to_finish is not None:
        return
    req.to_finish = FinishReason(
        type="abort",
        message=f"custom_logit_processor failed: {described(error)}",
        status_code=400 if _is_own(req, error) else 500,
    )
