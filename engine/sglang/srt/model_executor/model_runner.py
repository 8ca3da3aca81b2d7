"""`ModelRunner`: a batch goes in, logits come out, and from logits tokens."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sglang.kernels.decode_attention import NUM_KV_SPLITS
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.core.batch import ForwardBatch, GenerationBatchResult
from sglang.srt.core.request import Req
from sglang.srt.layers.attention.attention_registry import attention_backend_for
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.attention.window_pool_backend import WindowPoolBackend
from sglang.srt.layers.logits_processor import LogitsOutput
from sglang.srt.layers.pooler import Pooler
from sglang.srt.lora.lora_manager import LoRAManager, LoRAOptions
from sglang.srt.mem_cache.memory_pool import KVCache, ReqToTokenPool
from sglang.srt.model_executor.dtype import resolve_dtype, resolve_kv_dtype
from sglang.srt.model_executor.invariance import compute_invariantly
from sglang.srt.model_executor.memory import (
    MemoryWishes,
    plan_pools,
    return_free_memory,
)
from sglang.srt.model_executor.row_pieces import in_tiles
from sglang.srt.model_loader.loader import ProgressCallback, load_model, weight_bytes
from sglang.srt.sampling.grammar_mask import GrammarMasks
from sglang.srt.sampling.logprobs import prompt_logprobs
from sglang.srt.sampling.sampler_backends import SamplerContext, create_sampler

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunnerConfig:
    """What the runner needs to know besides the model itself."""

    device: str = "cpu"
    dtype: str = "auto"  # auto | float32 | float | bfloat16 | half | float16
    kv_cache_dtype: str = "auto"  # auto: as dtype
    load_format: str = "auto"  # auto | safetensors | gguf | dummy
    attention_backend: str = "torch_native"
    prefill_attention_backend: str | None = None  # None: attention_backend
    decode_attention_backend: str | None = None  # None: attention_backend
    triton_attention_num_kv_splits: int = NUM_KV_SPLITS
    memory: MemoryWishes = MemoryWishes()
    random_seed: int | None = None  # of requests without a seed of their own; None: from the OS
    sampling_backend: str | None = None  # a registered name; None: the built-in sampler
    is_deterministic: bool = False  # no bit of an answer depends on the batch
    is_embedding: bool = False  # passes end in a vector per request instead of logits
    lora: LoRAOptions | None = None  # None: requests cannot name adapters


class ModelRunner:
    """Owns the weights, the attention backend and the sampler; borrows the KV pools.

    Life: construct (loads the weights) → `build_memory(runner.kv_dims, sizes, …)` with the size of
    `memory_plan` → `attach_memory` → `forward` and `sample`, once each per step.
    """

    def __init__(
        self,
        model_config: ModelConfig,
        config: RunnerConfig,
        progress: ProgressCallback | None = None,
    ) -> None:
        self.model_config = model_config
        self.config = config
        self.device = torch.device(config.device)
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                "--device cuda: torch finds no CUDA device on this machine; leave the option out "
                "to compute on the CPU"
            )
        self.dtype = resolve_dtype(config.dtype, self.device)
        self.model = load_model(
            model_config, config.load_format, self.dtype, self.device, progress=progress
        )
        if config.is_deterministic:
            compute_invariantly(self.model)
        if config.is_embedding:
            self._make_it_embed()
        self.weight_bytes = weight_bytes(self.model)
        self.lora_manager = self._make_lora_manager(config)
        self.kv_dims, self.memory_plan = plan_pools(
            model_config,
            resolve_kv_dtype(config.kv_cache_dtype, self.dtype),
            self.weight_bytes + (self.lora_manager.nbytes if self.lora_manager else 0),
            self.device,
            config.memory,
        )
        logger.info(
            "KV pool: %s; %d tokens = %.2f GiB.",
            self.kv_dims.arithmetic(),
            self.memory_plan.max_total_num_tokens,
            self.memory_plan.pool_bytes / 2**30,
        )
        self.attn_backend = self._make_attention()
        self.grammar_masks = GrammarMasks()
        self.sampler = create_sampler(config.sampling_backend, context=self._sampler_context())
        self.req_to_token_pool: ReqToTokenPool | None = None
        self.token_to_kv_pool: KVCache | None = None

    @property
    def max_total_num_tokens(self) -> int:
        """KV tokens that fit: a multiple of the page size."""
        return self.memory_plan.max_total_num_tokens

    def attach_memory(self, req_to_token_pool: ReqToTokenPool, token_to_kv_pool: KVCache) -> None:
        """Called once, before the first `forward`."""
        self.req_to_token_pool = req_to_token_pool
        self.token_to_kv_pool = token_to_kv_pool
        if not self.attn_backend.support_triton():
            token_to_kv_pool.store_by_torch()

    def _sampler_context(self) -> SamplerContext:
        config = self.config
        return SamplerContext(
            self.model_config.vocab_size,
            self.device,
            config.random_seed,
            config.is_deterministic,
            self.grammar_masks,
        )

    def _make_attention(self) -> AttentionBackend:
        if not self.kv_dims.window_layers:
            return attention_backend_for(self)
        return WindowPoolBackend(attention_backend_for(self), attention_backend_for(self))

    def release_caches(self) -> None:
        """Between passes: gives back what is kept only for speed, and free memory to the system."""
        self.attn_backend.release()
        return_free_memory(self.device)

    @torch.inference_mode()
    def forward(self, forward_batch: ForwardBatch) -> LogitsOutput:
        """Computes the new tokens of the batch and writes their K and V to `out_cache_loc`.

        `req_to_token` must already hold the slots of the new tokens.
        """
        assert self.token_to_kv_pool is not None, "attach_memory comes before forward"
        forward_batch.req_to_token_pool = self.req_to_token_pool
        forward_batch.token_to_kv_pool = self.token_to_kv_pool
        forward_batch.attn_backend = self.attn_backend
        if self.lora_manager is not None:
            lens = forward_batch.extend_seq_lens or [1] * forward_batch.batch_size
            self.lora_manager.prepare(forward_batch.lora_ids, lens)
        self.attn_backend.init_forward_metadata(forward_batch)
        return self.model(forward_batch.input_ids, forward_batch.positions, forward_batch)

    def _make_lora_manager(self, config: RunnerConfig) -> LoRAManager | None:
        if config.lora is None:
            return None
        args = (self.model, config.lora, self.dtype, self.device)
        if config.is_deterministic:
            return LoRAManager(*args, apply=in_tiles)
        return LoRAManager(*args)

    def _make_it_embed(self) -> None:
        if not hasattr(self.model, "logits_processor"):
            raise ValueError(
                f"--is-embedding: {type(self.model).__name__} has no logits_processor that could "
                "give way to a pooler; this model only generates"
            )
        self.model.logits_processor = Pooler()

    @torch.inference_mode()
    def sample(
        self, logits_output: LogitsOutput, reqs: Sequence[Req], forward_batch: ForwardBatch
    ) -> GenerationBatchResult:
        """One token per request, and the logprobs that the requests asked for.

        The caller appends the tokens to `Req.output_ids` (and feeds grammars) before the next call.
        Input logprobs cover the prompt tokens whose predecessor is in this pass; the first prompt
        token, which nothing predicts, is not among them.
        """
        logits = logits_output.next_token_logits
        assert logits is not None, "a model that embeds gives nothing to choose from"
        next_ids, output_rows = self.sampler.sample(
            logits, reqs, forward_batch.seq_lens_cpu, forward_batch.is_final
        )
        input_rows = prompt_logprobs(
            self.model.compute_logits,
            logits_output.prompt_hidden_states,
            reqs,
            forward_batch,
            stable=self.config.is_deterministic,
        )
        return GenerationBatchResult(next_ids, output_rows, input_rows)
