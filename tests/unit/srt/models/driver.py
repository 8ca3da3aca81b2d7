"""Runs requests through a `ModelRunner` step by step, with pools of its own and no scheduler."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.core.batch import ForwardBatch, ForwardMode, GenerationBatchResult
from sglang.srt.core.request import Req
from sglang.srt.core.sampling_params import SamplingParams
from sglang.srt.mem_cache.memory_pool import PoolSizes, build_memory
from sglang.srt.model_executor.memory import MemoryWishes
from sglang.srt.model_executor.model_runner import ModelRunner, RunnerConfig

POOL_TOKENS = 2048


def make_req(prompt: list[int], **options: Any) -> Req:
    """A greedy request unless the options say otherwise; options of `Req` go by their names."""
    own = {
        name: options.pop(name)
        for name in ("return_logprob", "top_logprobs_num", "token_ids_logprob", "eos_token_ids")
        if name in options
    }
    params = SamplingParams(**{"temperature": 0.0, **options}).normalized()
    return Req(rid="r", origin_input_ids=prompt, sampling_params=params, **own)


@dataclass
class Driver:
    """Tokens of a request that stand in the pool are counted in `filled`, by request."""

    path: Path
    load_format: str = "auto"
    attention_backend: str = "torch_native"
    kv_cache_dtype: str = "auto"
    is_deterministic: bool = False
    memory_wishes: MemoryWishes = MemoryWishes(max_total_tokens=POOL_TOKENS)
    filled: dict[Req, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        config = RunnerConfig(
            dtype="float32",
            load_format=self.load_format,
            attention_backend=self.attention_backend,
            kv_cache_dtype=self.kv_cache_dtype,
            memory=self.memory_wishes,
            random_seed=0,
            is_deterministic=self.is_deterministic,
        )
        self.runner = ModelRunner(ModelConfig.from_path(self.path), config)
        sizes = PoolSizes(self.runner.max_total_num_tokens, 1, 16, 256)
        self.memory = build_memory(self.runner.kv_dims, sizes, "cpu")
        self.runner.attach_memory(self.memory.req_to_token_pool, self.memory.token_to_kv_pool)

    def admit(self, req: Req, cached_from: Req | None = None, cached: int = 0) -> Req:
        """Gives the request a row; its first `cached` tokens are those of another request."""
        table = self.memory.req_to_token_pool
        table.alloc([req])
        if cached_from is not None:
            table.write((req.req_pool_idx, slice(0, cached)), table.slots(cached_from, 0, cached))
        self.filled[req] = cached
        return req

    def extend(
        self,
        reqs: list[Req],
        chunk: int | None = None,
        logprobs: bool = False,
        first_logprob: int = 0,
    ) -> Any:
        """One extend pass over at most `chunk` new tokens of each request, with its tokens.

        With `logprobs`, prompt logprobs start behind the token at `first_logprob`.
        """
        prefixes = [self.filled[req] for req in reqs]
        news = [min(chunk or req.seq_len, req.seq_len - self.filled[req]) for req in reqs]
        batch = self._extend_batch(reqs, prefixes, news)
        batch.extend_logprob_start_lens = [
            min(max(first_logprob - prefix, 0), new) if logprobs else new
            for prefix, new in zip(prefixes, news, strict=True)
        ]
        return self._run(reqs, batch)

    def decode(self, reqs: list[Req]) -> GenerationBatchResult:
        lengths = [req.seq_len for req in reqs]
        slots = self._new_slots(len(reqs))
        for req, slot in zip(reqs, slots, strict=True):
            self.memory.req_to_token_pool.write((req.req_pool_idx, req.seq_len - 1), slot)
            self.filled[req] = req.seq_len
        batch = ForwardBatch(
            ForwardMode.DECODE,
            torch.tensor([req.output_ids[-1] for req in reqs]),
            torch.tensor(lengths) - 1,
            torch.tensor([req.req_pool_idx for req in reqs]),
            torch.tensor(lengths),
            lengths,
            slots,
        )
        return self._run(reqs, batch)

    def generate(
        self, reqs: list[Req], num_tokens: int, chunk: int | None = None
    ) -> list[list[int]]:
        """Prompts, chunk by chunk, then decoding, all requests in one batch."""
        while waiting := [req for req in reqs if not req.output_ids]:
            self.extend(waiting, chunk)
        for _ in range(num_tokens - 1):
            self.decode(reqs)
        return [req.output_ids for req in reqs]

    def clear(self) -> None:
        """Forgets all requests and what is in the pools."""
        self.filled.clear()
        self.memory.req_to_token_pool.clear()
        self.memory.token_to_kv_pool_allocator.clear()

    def logits(self, req: Req) -> torch.Tensor:
        """[vocab], after the whole request."""
        prefix = self.filled[req]
        batch = self._extend_batch([req], [prefix], [req.seq_len - prefix])
        batch.extend_logprob_start_lens = batch.extend_seq_lens
        return self.runner.forward(batch).next_token_logits[0]

    def _extend_batch(self, reqs: list[Req], prefixes: list[int], news: list[int]) -> ForwardBatch:
        ids: list[int] = []
        positions: list[int] = []
        slots = self._new_slots(sum(news))
        for req, prefix, new in zip(reqs, prefixes, news, strict=True):
            own = slots[len(ids) : len(ids) + new]
            self.memory.req_to_token_pool.write(
                (req.req_pool_idx, slice(prefix, prefix + new)), own
            )
            ids += req.fill_ids[prefix : prefix + new]
            positions += range(prefix, prefix + new)
            self.filled[req] = prefix + new
        lengths = [self.filled[req] for req in reqs]
        return ForwardBatch(
            ForwardMode.EXTEND,
            torch.tensor(ids),
            torch.tensor(positions),
            torch.tensor([req.req_pool_idx for req in reqs]),
            torch.tensor(lengths),
            lengths,
            slots,
            prefixes,
            news,
        )

    def _new_slots(self, count: int) -> torch.Tensor:
        slots = self.memory.token_to_kv_pool_allocator.alloc(count)
        assert slots is not None
        return slots

    def _run(self, reqs: list[Req], batch: ForwardBatch) -> GenerationBatchResult:
        batch.is_final = [self.filled[req] == req.seq_len for req in reqs]
        result = self.runner.sample(self.runner.forward(batch), reqs, batch)
        for req, token_id in zip(reqs, result.next_token_ids, strict=True):
            if self.filled[req] == req.seq_len:
                req.output_ids.append(token_id)
        return result
