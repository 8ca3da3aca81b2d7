"""The scheduler's worker: turns its batches into tensors and asks the model runner."""

from pathlib import Path

import torch

from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.core.batch import ForwardBatch, GenerationBatchResult, ScheduleBatch
from sglang.srt.core.config import cache_config, schedule_config
from sglang.srt.lora.lora_manager import lora_options
from sglang.srt.mem_cache.memory_pool import Memory, PoolSizes, build_memory
from sglang.srt.model_executor.memory import MemoryWishes
from sglang.srt.model_executor.model_runner import ModelRunner, RunnerConfig
from sglang.srt.model_loader.loader import ProgressCallback
from sglang.srt.server_args import ServerArgs

# One running request per so many KV tokens, unless --max-running-requests says otherwise.
KV_TOKENS_PER_REQUEST = 256
MIN_DEFAULT_RUNNING_REQUESTS = 8
MAX_DEFAULT_RUNNING_REQUESTS = 256


class TpModelWorker:
    """Owns the model runner and the KV pools of one rank."""

    def __init__(
        self, server_args: ServerArgs, gpu_id: int = 0, progress: ProgressCallback | None = None
    ) -> None:
        self.gpu_id = gpu_id
        self.is_embedding = server_args.is_embedding
        self.model_config = ModelConfig.from_path(
            Path(server_args.model_path), server_args.context_length
        )
        self.runner = ModelRunner(self.model_config, _runner_config(server_args), progress)
        num_tokens = self.runner.max_total_num_tokens
        self.cache_config = cache_config(server_args, self.model_config.context_len, num_tokens)
        self.schedule_config = schedule_config(
            server_args, server_args.max_running_requests or default_running_requests(num_tokens)
        )
        self.memory = self._build_memory()
        self.runner.attach_memory(self.memory.req_to_token_pool, self.memory.token_to_kv_pool)

    def forward_batch_generation(self, batch: ScheduleBatch) -> GenerationBatchResult:
        """One pass and one token per request, or one vector of a model that embeds."""
        runner = self.runner
        runner.grammar_masks.begin(batch, self.model_config.vocab_size, runner.device)
        forward_batch = build_forward_batch(batch)
        logits_output = runner.forward(forward_batch)
        if logits_output.embeddings is not None:
            nothing, no_rows = [0] * batch.batch_size, [None] * batch.batch_size
            vectors = logits_output.embeddings.tolist()
            return GenerationBatchResult(nothing, [*no_rows], [*no_rows], vectors)
        batch.wait_for_history()
        return runner.sample(logits_output, batch.reqs, forward_batch)

    def release_caches(self) -> None:
        """Gives back what is kept between steps only for speed."""
        self.runner.release_caches()

    def _build_memory(self) -> Memory:
        sizes = PoolSizes(
            num_tokens=self.cache_config.max_total_tokens,
            page_size=self.cache_config.page_size,
            max_running_requests=self.schedule_config.max_running_requests,
            context_len=self.cache_config.context_len,
        )
        return build_memory(self.runner.kv_dims, sizes, str(self.runner.device))


def default_running_requests(num_kv_tokens: int) -> int:
    fitting = num_kv_tokens // KV_TOKENS_PER_REQUEST
    return min(max(fitting, MIN_DEFAULT_RUNNING_REQUESTS), MAX_DEFAULT_RUNNING_REQUESTS)


def build_forward_batch(batch: ScheduleBatch) -> ForwardBatch:
    """Flat tensors of the batch. The pool's rows already hold the new tokens' slots."""
    device, layout = batch.out_cache_loc.device, batch.layout

    def tensor(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    return ForwardBatch(
        forward_mode=batch.forward_mode,
        input_ids=tensor(layout.input_ids),
        positions=tensor(layout.positions),
        req_pool_indices=tensor(layout.rows),
        seq_lens=tensor(layout.seq_lens),
        seq_lens_cpu=layout.seq_lens,
        out_cache_loc=batch.out_cache_loc,
        extend_prefix_lens=batch.extend_prefix_lens,
        extend_seq_lens=batch.extend_seq_lens,
        extend_logprob_start_lens=layout.logprob_starts,
        is_final=layout.is_final,
        lora_ids=[req.lora_id for req in batch.reqs],
    )


def _runner_config(args: ServerArgs) -> RunnerConfig:
    assert args.attention_backend is not None, "filled when the options were built"
    return RunnerConfig(
        device=args.device or "cpu",
        dtype=args.dtype,
        kv_cache_dtype=args.kv_cache_dtype,
        load_format=args.load_format,
        attention_backend=args.attention_backend,
        prefill_attention_backend=args.prefill_attention_backend,
        decode_attention_backend=args.decode_attention_backend,
        triton_attention_num_kv_splits=args.triton_attention_num_kv_splits,
        memory=_memory_wishes(args),
        random_seed=args.random_seed,
        sampling_backend=args.sampling_backend,
        is_deterministic=args.enable_deterministic_inference,
        is_embedding=args.is_embedding,
        lora=lora_options(args) if args.enable_lora else None,
    )


def _memory_wishes(args: ServerArgs) -> MemoryWishes:
    chunk = args.chunked_prefill_size
    return MemoryWishes(
        page_size=args.page_size,
        mem_fraction_static=args.mem_fraction_static,
        max_total_tokens=args.max_total_tokens,
        # A cached prefix would need its last window in the second pool, so there is none then.
        window_share=args.swa_full_tokens_ratio if args.disable_radix_cache else None,
        longest_pass=chunk if chunk is not None and chunk > 0 else None,
    )
