"""Makes batches of requests whose memory is allocated, with all that a pass reads of them."""

from collections.abc import Sequence

import torch

from sglang.srt.core.batch import FUTURE, BatchLayout, ForwardMode, ScheduleBatch
from sglang.srt.core.request import Req
from sglang.srt.mem_cache.request_memory import wants_prompt_logprobs


def prefill_batch(
    reqs: list[Req], new_lens: list[int], out_cache_loc: torch.Tensor
) -> ScheduleBatch:
    """The next `new_len` tokens of each request's prompt; their slots stand in the rows already."""
    # out_cache_loc: [sum(new_lens)]
    layout = BatchLayout([], [], [], [], [], [])
    prefix_lens = [req.kv_committed_len - new for req, new in zip(reqs, new_lens, strict=True)]
    for req, prefix_len, new_len in zip(reqs, prefix_lens, new_lens, strict=True):
        end = prefix_len + new_len
        layout.input_ids.extend(req.fill_ids[prefix_len:end])
        layout.positions.extend(range(prefix_len, end))
        layout.seq_lens.append(end)
        layout.logprob_starts.append(_logprob_start(req, prefix_len, new_len))
        layout.is_final.append(end == req.seq_len)
        _begin(req, new_len, layout)
    return ScheduleBatch(
        reqs=reqs,
        forward_mode=ForwardMode.EXTEND,
        out_cache_loc=out_cache_loc,
        layout=layout,
        num_prompts=len(reqs),
        extend_prefix_lens=prefix_lens,
        extend_seq_lens=list(new_lens),
    )


def decode_batch(reqs: list[Req], out_cache_loc: torch.Tensor) -> ScheduleBatch:
    """One more token per request. A token that a running pass chooses is left open."""
    # out_cache_loc: [batch_size]
    layout = BatchLayout([], [], [], [], [], [])
    for index, req in enumerate(reqs):
        seq_len = req.kv_committed_len
        is_known = req.seq_len >= seq_len
        layout.input_ids.append(req.output_ids[-1] if is_known else FUTURE)
        if not is_known:
            layout.futures[index] = req
        layout.positions.append(seq_len - 1)
        layout.seq_lens.append(seq_len)
        layout.is_final.append(True)
        _begin(req, 1, layout)
    return ScheduleBatch(reqs, ForwardMode.DECODE, out_cache_loc, layout)


def mixed_batch(prompts: ScheduleBatch, answers: ScheduleBatch) -> ScheduleBatch:
    """Both in one pass, the prompts first."""
    first, second = prompts.layout, answers.layout
    offset = len(first.input_ids)
    return ScheduleBatch(
        reqs=prompts.reqs + answers.reqs,
        forward_mode=ForwardMode.MIXED,
        out_cache_loc=torch.cat([prompts.out_cache_loc, answers.out_cache_loc]),
        layout=BatchLayout(
            input_ids=first.input_ids + second.input_ids,
            positions=first.positions + second.positions,
            rows=first.rows + second.rows,
            seq_lens=first.seq_lens + second.seq_lens,
            logprob_starts=first.logprob_starts + [1] * len(answers.reqs),
            is_final=first.is_final + second.is_final,
            futures={offset + index: req for index, req in second.futures.items()},
        ),
        num_prompts=prompts.num_prompts,
        extend_prefix_lens=prompts.extend_prefix_lens + [n - 1 for n in second.seq_lens],
        extend_seq_lens=prompts.extend_seq_lens + [1] * len(answers.reqs),
        kv_copies=prompts.kv_copies + answers.kv_copies,
    )


def take_in(batch: ScheduleBatch) -> None:
    """The pass is done: what it wrote is valid. Called before anything else is done with it."""
    new_lens: Sequence[int] = batch.extend_seq_lens or [1] * len(batch.reqs)
    for req, new_len in zip(batch.reqs, new_lens, strict=True):
        if not req.finished:
            req.kv_pending_len -= new_len


def _begin(req: Req, new_len: int, layout: BatchLayout) -> None:
    assert req.req_pool_idx is not None, f"{req.rid} has no row"
    layout.rows.append(req.req_pool_idx)
    req.kv_pending_len += new_len


def _logprob_start(req: Req, prefix_len: int, new_len: int) -> int:
    if not wants_prompt_logprobs(req):
        return new_len
    return min(max(req.logprob_start_len - prefix_len, 0), new_len)
