"""Penalties on tokens that were seen: frequency, presence and repetition."""

from collections import Counter
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
import torch

from sglang.srt.core.request import Req
from sglang.srt.core.sampling_params import SamplingParams


def is_penalized(params: SamplingParams) -> bool:
    return bool(
        params.frequency_penalty or params.presence_penalty or params.repetition_penalty != 1.0
    )


class SeenTokens:
    """The distinct tokens of one request with their output counts, kept up as it grows.

    The first `size` entries of the arrays are valid. Prompt tokens are among them with count 0:
    only the repetition penalty looks at the prompt.
    """

    def __init__(self, prompt_ids: list[int]) -> None:
        self._index: dict[int, int] = {}
        self._num_counted = 0
        self.size = 0
        self.ids = np.empty(64, dtype=np.int64)
        self.counts = np.empty(64, dtype=np.float32)
        for token_id in dict.fromkeys(prompt_ids):
            self._append(token_id, 0)

    def catch_up(self, output_ids: list[int]) -> None:
        """Counts the outputs that came since the last call."""
        for token_id, count in Counter(output_ids[self._num_counted :]).items():
            index = self._index.get(token_id)
            if index is None:
                self._append(token_id, count)
            else:
                self.counts[index] += count
        self._num_counted = len(output_ids)

    def _append(self, token_id: int, count: int) -> None:
        if self.size == len(self.ids):
            self.ids = np.concatenate((self.ids, np.empty_like(self.ids)))
            self.counts = np.concatenate((self.counts, np.empty_like(self.counts)))
        self._index[token_id] = self.size
        self.ids[self.size] = token_id
        self.counts[self.size] = count
        self.size += 1


class Penalizer:
    """Applies the penalties of a batch; cost grows with the tokens seen, not the vocabulary."""

    def __init__(self) -> None:
        self._seen: WeakKeyDictionary[Req, SeenTokens] = WeakKeyDictionary()

    def apply(self, logits: torch.Tensor, rows: Sequence[int], reqs: Sequence[Req]) -> None:
        """Changes the logits in place; `rows[i]` is the row of `reqs[i]`, each one penalized."""
        # logits: [batch_size, vocab] float32
        seen = [self._caught_up(req) for req in reqs]
        sizes = [tokens.size for tokens in seen]
        vocab = logits.shape[1]
        ids = np.concatenate([tokens.ids[: tokens.size] for tokens in seen])
        flat_ids = ids + np.repeat(np.asarray(rows, dtype=np.int64) * vocab, sizes)
        counts = torch.from_numpy(
            np.concatenate([tokens.counts[: tokens.size] for tokens in seen])
        ).to(logits.device)
        index = torch.from_numpy(flat_ids).to(logits.device)
        frequency, presence, repetition = (
            self._per_token(reqs, sizes, field).to(logits.device)
            for field in ("frequency_penalty", "presence_penalty", "repetition_penalty")
        )
        flat = logits.view(-1)
        values = flat[index]
        values = torch.where(values > 0, values / repetition, values * repetition)
        values -= frequency * counts + presence * (counts > 0)
        flat.index_copy_(0, index, values)

    def _caught_up(self, req: Req) -> SeenTokens:
        tokens = self._seen.get(req)
        if tokens is None:
            tokens = self._seen[req] = SeenTokens(req.origin_input_ids)
        tokens.catch_up(req.output_ids)
        return tokens

    @staticmethod
    def _per_token(reqs: Sequence[Req], sizes: list[int], field: str) -> torch.Tensor:
        values = np.asarray([getattr(req.sampling_params, field) for req in reqs], dtype=np.float32)
        return torch.from_numpy(np.repeat(values, sizes))
