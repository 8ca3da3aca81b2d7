"""Drawing tokens from filtered distributions, by one uniform number per row."""

import torch

from sglang.srt.sampling.batch_params import DrawParams
from sglang.srt.sampling.ranks import stable_topk

# Ranks looked at first when only top_p limits a row; nearly always they hold that much probability.
_FIRST_RANKS = 256
# The running sum over the vocabulary goes by blocks: sums of blocks, then within the one hit.
_BLOCK = 128
_MASK64 = (1 << 64) - 1


def uniform_of(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on nothing but the seed and the position in the text."""
    mixed = _mix(_mix(seed & _MASK64) ^ position)
    return (mixed >> 11) * 2.0**-53


def draw_tokens(
    logits: torch.Tensor, params: DrawParams, uniforms: torch.Tensor, stable: bool = False
) -> torch.Tensor:
    """One token id per row. Overwrites the logits.

    A row's token depends on its logits, parameters and uniform number only, not on other rows:
    the tokens that survive the filters are laid out by id along [0, 1), and the number points
    at one of them. Which of equally probable tokens survive is decided by id if `stable`, which
    costs time, else by the way the ranks are found.
    """
    # logits: [num_rows, vocab] float32, uniforms: [num_rows] float64 -> [num_rows] int64
    probs = torch.softmax(logits.div_(params.temperatures), dim=-1, out=logits)
    if not params.ranked:
        return _draw_unranked(probs, params.min_ps if params.has_min_p else None, uniforms)
    if not params.unranked:
        return _draw_ranked(probs, params, params.ranked, uniforms, stable)
    token_ids = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    rows = params.unranked
    min_ps = params.min_ps[rows] if params.has_min_p else None
    token_ids[rows] = _draw_unranked(probs[rows], min_ps, uniforms[rows])
    rows = params.ranked
    token_ids[rows] = _draw_ranked(probs[rows], params, rows, uniforms[rows], stable)
    return token_ids


def _draw_unranked(
    probs: torch.Tensor, min_ps: torch.Tensor | None, uniforms: torch.Tensor
) -> torch.Tensor:
    # probs: [num_rows, vocab]
    if min_ps is not None:
        probs = probs * (probs >= probs.amax(-1, keepdim=True) * min_ps)
    rows, vocab = probs.shape
    if vocab % _BLOCK:
        probs = torch.nn.functional.pad(probs, (0, -vocab % _BLOCK))
    blocks = probs.view(rows, -1, _BLOCK)
    sums = blocks.sum(-1, dtype=torch.float32).double()
    block, rest = _locate(sums, uniforms * sums.sum(-1))
    inside = blocks[torch.arange(rows, device=probs.device), block].double()
    offset, _ = _locate(inside, rest)
    # Weightless padding is found only if the logits were no numbers; stay in the vocabulary then.
    return (block * _BLOCK + offset).clamp_(max=vocab - 1)


def _draw_ranked(
    probs: torch.Tensor,
    params: DrawParams,
    rows: list[int],
    uniforms: torch.Tensor,
    stable: bool,
) -> torch.Tensor:
    # probs: [num_rows, vocab]
    top_ks, top_ps, min_ps = params.top_ks[rows], params.top_ps[rows], params.min_ps[rows]
    weights, token_ids = _rank(probs, params, top_ks, top_ps, stable)
    ranks = torch.arange(weights.shape[1], device=probs.device)
    weights = weights.double().mul_(ranks < top_ks)
    # top_p is a share of what top_k left; the token that crosses it stays.
    sums = weights.cumsum(-1)
    before = sums - weights
    limited = sums[:, -1:].where(top_ks < probs.shape[1], torch.ones_like(before[:, :1]))
    weights.mul_(before < top_ps * limited)
    weights.mul_(weights >= weights[:, :1] * min_ps)
    # By id, so that the order of nearly equal tokens does not matter.
    token_ids, order = token_ids.sort(-1)
    weights = weights.gather(1, order)
    # NOTE: totals are running sums, which more ranks of no weight do not change in the last bit.
    chosen, _ = _locate(weights, uniforms * weights.cumsum(-1)[:, -1])
    return token_ids.gather(1, chosen.unsqueeze(1)).squeeze(1)


def _rank(
    probs: torch.Tensor,
    params: DrawParams,
    top_ks: torch.Tensor,
    top_ps: torch.Tensor,
    stable: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The most probable tokens, best first: as many as the filters can leave."""
    vocab = probs.shape[1]
    count = params.most_ranks
    if params.has_open_top_p:
        count = min(max(count, _FIRST_RANKS), vocab)
    weights, token_ids = stable_topk(probs, count) if stable else probs.topk(count, dim=-1)
    if params.has_open_top_p and count < vocab:
        short = (weights.sum(-1, keepdim=True) < top_ps) & (top_ks == vocab)
        if bool(short.any()):
            return torch.sort(probs, dim=-1, descending=True, stable=stable)
    return weights, token_ids


def _locate(weights: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the running sum first exceeds the target, and the target's rest within that entry."""
    # weights: [num_rows, n] float64, targets: [num_rows] -> two of [num_rows]
    sums = weights.cumsum(-1)
    # Rounding must not push a target past the last entry that has weight.
    targets = torch.minimum(targets, torch.nextafter(sums[:, -1], torch.zeros_like(targets)))
    found = torch.searchsorted(sums, targets.unsqueeze(1), right=True)
    found.clamp_(max=weights.shape[1] - 1)
    start = sums.gather(1, found) - weights.gather(1, found)
    return found.squeeze(1), (targets.unsqueeze(1) - start).squeeze(1).clamp_(min=0.0)


def _mix(value: int) -> int:
    """The finalizer of splitmix64: every input bit changes half of the output bits."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)
