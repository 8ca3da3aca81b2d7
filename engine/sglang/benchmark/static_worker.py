"""The engine's model on one batch at a time, without a scheduler around it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang.srt.core.batch import ScheduleBatch
    from sglang.srt.core.request import Req
    from sglang.srt.server_args import ServerArgs


class StaticWorker:
    """Loads the model. `extend` and `decode` end when their tokens are known."""

    def __init__(self, args: "ServerArgs") -> None:
        from sglang.srt.managers.tp_worker import TpModelWorker
        from sglang.srt.mem_cache.base_prefix_cache import CacheInitParams
        from sglang.srt.mem_cache.chunk_cache import ChunkCache
        from sglang.srt.mem_cache.request_memory import RequestMemory

        self._worker = TpModelWorker(args)
        pools, config = self._worker.memory, self._worker.cache_config
        table, allocator = pools.req_to_token_pool, pools.token_to_kv_pool_allocator
        params = CacheInitParams(
            disable=True,
            req_to_token_pool=table,
            token_to_kv_pool_allocator=allocator,
            page_size=config.page_size,
        )
        self._memory = RequestMemory(ChunkCache(params), table, allocator)
        self.vocab_size = self._worker.model_config.vocab_size
        self.context_len = config.context_len

    def check_fits(self, batch_size: int, tokens_each: int) -> None:
        """Raises ValueError with what to change when the batch cannot be computed."""
        if tokens_each > self.context_len:
            raise ValueError(
                f"--input-len and --output-len make {tokens_each} tokens; the model's context has "
                f"{self.context_len}"
            )
        rows = self._memory.rows_left()
        if batch_size > rows:
            raise ValueError(
                f"--batch-size is {batch_size}, but {rows} requests run at once; raise "
                "--max-running-requests"
            )
        needed = batch_size * self._memory.new_page_tokens(0, tokens_each)
        if needed > self._memory.size:
            raise ValueError(
                f"{batch_size} prompts of {tokens_each} tokens with their answers take {needed} "
                f"tokens of KV, and the pool has {self._memory.size}; raise --max-total-tokens"
            )

    def requests(self, prompts: Sequence[list[int]], output_len: int) -> "list[Req]":
        """Greedy ones, which no end token ends."""
        from sglang.srt.core.request import Req
        from sglang.srt.core.sampling_params import SamplingParams

        params = SamplingParams(max_new_tokens=output_len, temperature=0.0, ignore_eos=True)
        return [
            Req(f"static-{number}", list(ids), params.normalized())
            for number, ids in enumerate(prompts)
        ]

    def extend(self, reqs: "list[Req]", new_lens: list[int]) -> None:
        """Computes the next tokens of each prompt; one that is complete gets its first token."""
        from sglang.srt.managers.batch_layout import prefill_batch

        self._run(prefill_batch(reqs, new_lens, self._memory.extend(reqs, new_lens)))

    def decode(self, reqs: "list[Req]") -> None:
        """One more token for each."""
        from sglang.srt.managers.batch_layout import decode_batch

        self._run(decode_batch(reqs, self._memory.decode(reqs)))

    def release(self, reqs: "list[Req]") -> None:
        for req in reqs:
            self._memory.release(req)
        self._memory.check_integrity([])

    def _run(self, batch: "ScheduleBatch") -> None:
        from sglang.srt.managers.batch_layout import take_in

        result = self._worker.forward_batch_generation(batch)
        take_in(batch)
        for req, token_id in zip(batch.reqs, result.next_token_ids, strict=True):
            if req.kv_committed_len == req.seq_len:
                req.output_ids.append(token_id)
