"""From the logits of a batch to one token per request."""

import random
from collections.abc import Sequence

import torch

from sglang.srt.core.messages import LogprobRows
from sglang.srt.core.request import Req
from sglang.srt.sampling.batch_params import BatchParams
from sglang.srt.sampling.draw import draw_tokens, uniform_of
from sglang.srt.sampling.grammar_mask import GrammarMasks, is_masked
from sglang.srt.sampling.logprobs import output_logprobs
from sglang.srt.sampling.penalties import Penalizer
from sglang.srt.sampling.process_logits import process_logits
from sglang.srt.sampling.sampler_backends import SamplerContext

# What is chosen where logits are no numbers; it ends the request.
NO_TOKEN = -1
# Of requests without a seed where answers must not change from run to run.
DETERMINISTIC_SEED = 42


class Sampler:
    """Chooses tokens. State: the last batch's parameters and what penalized requests have seen."""

    def __init__(
        self,
        vocab_size: int,
        device: torch.device,
        random_seed: int | None,
        is_deterministic: bool = False,
        grammar_masks: GrammarMasks | None = None,
    ) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._random = random.Random(random_seed)
        self._is_deterministic = is_deterministic
        self._grammar_masks = grammar_masks or GrammarMasks()
        self._penalizer = Penalizer()
        self._params = BatchParams([], vocab_size, device)

    def sample(
        self,
        logits: torch.Tensor,
        reqs: Sequence[Req],
        seq_lens: Sequence[int],
        is_final: Sequence[bool],
    ) -> tuple[list[int], list[LogprobRows | None]]:
        """One token per row and, where wanted, its logprobs under the model's own distribution.

        `seq_lens[i]`, the position of the new token, is what a seed is combined with. A row that
        is not final (its prompt goes on) gets any token and no logprobs.
        """
        # logits: [batch_size, vocab]; may be overwritten
        if not self._params.describes(reqs):
            self._params = BatchParams(reqs, self._vocab_size, self._device)
        params = self._params
        wide = logits.float().contiguous()
        rows = [row for row in params.logprob_rows if is_final[row]]
        raw = wide[rows] if rows else None
        self._adjust(wide, reqs, is_final)
        best = wide.argmax(-1, keepdim=True)
        broken = (~wide.gather(1, best).isfinite()).view(-1).nonzero().view(-1).tolist()
        token_ids = best.view(-1)
        if params.drawn_rows:
            drawn = self._draw(wide, reqs, seq_lens)
            if len(params.drawn_rows) == len(reqs):
                token_ids = drawn
            else:
                token_ids[params.drawn_rows] = drawn
        next_ids: list[int] = token_ids.tolist()
        results: list[LogprobRows | None] = [None] * len(reqs)
        if raw is not None:
            scored = output_logprobs(
                raw,
                [reqs[row] for row in rows],
                [next_ids[row] for row in rows],
                stable=self._is_deterministic,
            )
            for row, result in zip(rows, scored, strict=True):
                results[row] = result
        for row in broken:
            next_ids[row] = NO_TOKEN
        return next_ids, results

    def _adjust(self, logits: torch.Tensor, reqs: Sequence[Req], is_final: Sequence[bool]) -> None:
        params = self._params
        if params.penalized_rows:
            rows = params.penalized_rows
            self._penalizer.apply(logits, rows, [reqs[row] for row in rows])
        if params.bias is not None:
            index, values = params.bias
            logits.view(-1).index_add_(0, index, values)
        # An answer may have ended when the step after it was under way: its token is for nobody.
        is_open = [is_final[row] and not req.finished for row, req in enumerate(reqs)]
        processed_rows = [row for row in params.processed_rows if is_open[row]]
        if processed_rows:
            process_logits(logits, processed_rows, [reqs[row] for row in processed_rows])
        # After all that allows tokens, so that nothing allows what a constraint forbids.
        grammar_rows = [row for row, req in enumerate(reqs) if is_masked(req, is_final[row])]
        if grammar_rows:
            self._grammar_masks.apply(logits, grammar_rows, [reqs[row] for row in grammar_rows])
        for row in params.min_length_rows:
            _hold_open(logits[row], reqs[row])

    def _draw(
        self, logits: torch.Tensor, reqs: Sequence[Req], seq_lens: Sequence[int]
    ) -> torch.Tensor:
        rows = self._params.drawn_rows
        uniforms = torch.tensor(
            [self._uniform(reqs[row], seq_lens[row]) for row in rows],
            dtype=torch.float64,
            device=logits.device,
        )
        # Sampling overwrites its input; a copy is needed only where greedy rows stand between.
        own = logits if len(rows) == len(reqs) else logits[rows]
        return draw_tokens(own, self._params.draw, uniforms, stable=self._is_deterministic)

    def _uniform(self, req: Req, position: int) -> float:
        seed = req.sampling_params.sampling_seed
        if seed is None and self._is_deterministic:
            seed = DETERMINISTIC_SEED + req.answer_index  # or the answers of one prompt were equal
        return self._random.random() if seed is None else uniform_of(seed, position)


def _hold_open(logits: torch.Tensor, req: Req) -> None:
    """Forbids the ends of an answer that is too short still, unless nothing else may follow."""
    # logits: [vocab]
    if len(req.output_ids) >= req.sampling_params.min_new_tokens:
        return
    ends = [*req.eos_token_ids, *req.sampling_params.stop_token_ids]
    before = logits[ends]
    logits[ends] = -torch.inf
    if logits.max() == -torch.inf:
        logits[ends] = before


def create_pytorch_sampler(context: SamplerContext) -> Sampler:
    """The registered factory; works on every device torch knows."""
    return Sampler(
        context.vocab_size,
        context.device,
        context.random_seed,
        context.is_deterministic,
        context.grammar_masks,
    )
