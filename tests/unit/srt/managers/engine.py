"""A scheduler on a tiny deterministic model, driven step by step.

The model's "KV" of a token is a number that depends on the token and its position; the next token
is a hash over the KV that the request's row addresses. A wrong slot, a page given away too early,
or a position off by one therefore changes the answer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from sglang.srt.constrained.base_grammar_backend import BaseGrammarBackend
from sglang.srt.constrained.grammar_manager import why_refused
from sglang.srt.core.batch import ForwardBatch, GenerationBatchResult, ScheduleBatch
from sglang.srt.core.config import ScheduleConfig
from sglang.srt.core.messages import (
    ControlOutput,
    FinishReason,
    GenerateInput,
    LogprobRows,
    RequestOutput,
    SchedulerInput,
    SchedulerOutput,
    StepOutput,
)
from sglang.srt.core.request import Req
from sglang.srt.core.sampling_params import SamplingParams
from sglang.srt.managers.adapters import LoadedAdapters
from sglang.srt.managers.admission import Limits
from sglang.srt.managers.parts import SchedulerParts
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.tp_worker import build_forward_batch
from sglang.srt.mem_cache.allocator import BaseTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import CacheInitParams
from sglang.srt.mem_cache.memory_pool import KVCache, ReqToTokenPool
from sglang.srt.mem_cache.registry import TreeCacheBuildContext, create_tree_cache
from sglang.srt.mem_cache.request_memory import RequestMemory

VOCAB = 97
EOS = 96
_PRIME = 1_000_003


def kv_of(token: int, position: int) -> int:
    return (token + 1) * 7919 + (position + 1) * 104729


def mix(kvs: Iterable[int]) -> int:
    state = 1
    for kv in kvs:
        state = (state * _PRIME + kv) % (1 << 61)
    return state


def next_token(kvs: Iterable[int]) -> int:
    """Never EOS, so that tests decide where answers end."""
    return mix(kvs) % (VOCAB - 1)


def reference(prompt: Sequence[int], num_tokens: int) -> list[int]:
    """The answer of a run without pool, cache, chunks or neighbours."""
    ids = list(prompt)
    for _ in range(num_tokens):
        ids.append(next_token(kv_of(token, i) for i, token in enumerate(ids)))
    return ids[len(prompt) :]


def reference_logprob(ids: Sequence[int], position: int) -> float:
    """Of the token at `position`, from the KV before it."""
    return -float(mix(kv_of(token, i) for i, token in enumerate(ids[:position])) % 1000)


class HashKV(KVCache):
    """One number per token, so that a prefix cache can copy it elsewhere."""

    def __init__(self, size: int, page_size: int) -> None:
        super().__init__(size, page_size, torch.int64, "cpu")
        self.num_layers = 1
        self.values = torch.zeros(size + page_size, dtype=torch.int64)

    def layer_buffers(self, layer_id: int) -> tuple[torch.Tensor, ...]:
        return (self.values,)

    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        return self.values

    def get_value_buffer(self, layer_id: int) -> torch.Tensor:
        return self.values

    def set_kv_buffer(self, layer, loc, cache_k, cache_v, k_scale=None, v_scale=None) -> None:  # type: ignore[no-untyped-def]
        raise AssertionError("the hash model has no attention")


class HashModel:
    """Stands in for the worker: writes KV where the batch says, reads what the rows address."""

    def __init__(self, table: ReqToTokenPool, kv: HashKV) -> None:
        self.kv = kv.values
        self.batches: list[ScheduleBatch] = []
        self.broken_rids: set[str] = set()
        self._table = table

    def forward_batch_generation(self, batch: ScheduleBatch) -> GenerationBatchResult:
        self.batches.append(batch)
        forward = build_forward_batch(batch)
        slots = forward.out_cache_loc.tolist()
        assert len(set(slots)) == len(slots)
        ids, positions = forward.input_ids.tolist(), forward.positions.tolist()
        self.kv[forward.out_cache_loc] = torch.tensor(list(map(kv_of, ids, positions)))
        result = GenerationBatchResult([], [], [])
        for i, req in enumerate(batch.reqs):
            kvs = self._addressed(forward, i)
            token = -1 if req.rid in self.broken_rids else next_token(kvs)
            result.next_token_ids.append(token)
            result.output_logprobs.append(_rows([kvs], [token], req))
            result.input_logprobs.append(_prompt_rows(forward, i, req, kvs))
        return result

    def _addressed(self, forward: ForwardBatch, i: int) -> list[int]:
        row, length = int(forward.req_pool_indices[i]), forward.seq_lens_cpu[i]
        return self.kv[self._table.req_to_token[row, :length].long()].tolist()


def _rows(befores: list[list[int]], tokens: list[int], req: Req) -> LogprobRows | None:
    if not req.return_logprob:
        return None
    return LogprobRows(logprobs=[-float(mix(kvs) % 1000) for kvs in befores], token_ids=tokens)


def _prompt_rows(forward: ForwardBatch, i: int, req: Req, kvs: list[int]) -> LogprobRows | None:
    if forward.forward_mode.is_decode():
        return None
    prefix_len = forward.extend_prefix_lens[i]
    first = prefix_len + forward.extend_logprob_start_lens[i]
    last = prefix_len + forward.extend_seq_lens[i]
    targets = [t for t in range(first + 1, last + 1) if t < len(req.origin_input_ids)]
    tokens = [req.origin_input_ids[t] for t in targets]
    return _rows([kvs[:t] for t in targets], tokens, req)


class WordStops:
    """Text where every token is one word; a stop string is such a word."""

    def __init__(self, params: SamplingParams) -> None:
        if "(" in params.stop_regex:
            raise ValueError("unclosed group")
        self._params = params

    def push(self, token_id: int, watch: bool) -> str | None:
        word = f"w{token_id}"
        return word if watch and word in self._params.stop else None


@dataclass
class Answer:
    token_ids: list[int] = field(default_factory=list)
    outputs: list[RequestOutput] = field(default_factory=list)

    @property
    def finish(self) -> FinishReason | None:
        return self.outputs[-1].finish if self.outputs else None

    @property
    def last(self) -> RequestOutput:
        return self.outputs[-1]


class RecordingOutbox:
    def __init__(self) -> None:
        self.sent: list[SchedulerOutput] = []
        self.answers: dict[str, Answer] = {}

    def send(self, output: SchedulerOutput) -> None:
        self.sent.append(output)
        if not isinstance(output, StepOutput):
            return
        for news in output.outputs:
            answer = self.answers.setdefault(news.rid, Answer())
            assert answer.finish is None, f"{news.rid} got news after its end"
            answer.token_ids.extend(news.token_ids)
            answer.outputs.append(news)
            assert news.completion_tokens == len(answer.token_ids)


class EmptyInbox:
    def receive(self, *, wait: float | None) -> list[SchedulerInput]:
        raise AssertionError("tests call the steps themselves")


@dataclass(frozen=True)
class Cache:
    """The options that the cache reads; `hicache_ratio` has no default here, None is off."""

    radix_cache_backend: str | None = None
    hicache_ratio: float | None = None
    hicache_size: int = 0
    hicache_write_policy: str = "write_through"
    hicache_mem_layout: str = "page_first"
    hicache_storage_backend: str | None = None
    hicache_storage_prefetch_policy: str = "wait_complete"
    hicache_storage_backend_extra_config: str | None = None
    served_model_name: str = "hash-model"


class Engine:
    """The scheduler with its surroundings. Options are those of ScheduleConfig, and sizes."""

    overlap = False  # set for all by the folder's conftest
    adapters: LoadedAdapters | None = None

    def __init__(
        self,
        *,
        pool: int = 4096,
        page_size: int = 1,
        context: int = 1024,
        disable_radix_cache: bool = False,
        grammar_backend: BaseGrammarBackend | None = None,
        cache: Cache = Cache(),
        **schedule: object,
    ) -> None:
        self.now = 0.0
        self.num_releases = 0
        config = ScheduleConfig(**{"max_running_requests": 64, "overlap": self.overlap, **schedule})  # type: ignore[arg-type]
        table = ReqToTokenPool(config.max_running_requests, context, "cpu")
        kv = HashKV(pool // page_size * page_size, page_size)
        allocator = BaseTokenToKVPoolAllocator(pool, page_size, kv.dtype, "cpu", kv)
        params = CacheInitParams(
            req_to_token_pool=table, token_to_kv_pool_allocator=allocator, page_size=page_size
        )
        tree = create_tree_cache(
            TreeCacheBuildContext(
                cache,
                params,
                disable_radix_cache,
                enable_hierarchical_cache=cache.hicache_ratio is not None,
            )
        )
        self.memory = RequestMemory(tree, table, allocator)
        self.model = HashModel(table, kv)
        self.outbox = RecordingOutbox()
        self.scheduler = Scheduler(
            SchedulerParts(
                inbox=EmptyInbox(),
                outbox=self.outbox,
                worker=self.model,
                memory=self.memory,
                config=config,
                limits=Limits(
                    context,
                    allocator.size,
                    VOCAB,
                    frozenset([EOS]),
                    grammar_backend and partial(why_refused, grammar_backend),
                ),
                grammar_backend=grammar_backend,
                adapters=self.adapters,
                release_caches=self._count_release,
                make_stop_text=WordStops,
                clock=lambda: self.now,
            )
        )

    def _count_release(self) -> None:
        self.num_releases += 1

    def send(self, *inputs: SchedulerInput) -> None:
        self.scheduler.process_input_requests(inputs)

    def step(self) -> bool:
        """One turn of the loop; False if there was nothing to compute."""
        scheduler, lane = self.scheduler, self.scheduler.lane
        batch = scheduler.get_next_batch_to_run()
        was_busy = batch is not None or (lane is not None and lane.is_busy)
        if lane is not None and was_busy:
            if batch is not None:
                lane.launch(batch)
            lane.settle(leave=int(batch is not None))
        elif batch is not None:
            scheduler.process_batch_result(batch, scheduler.run_batch(batch))
        else:
            scheduler.on_idle()
        self.memory.check_integrity(scheduler.live.holders())
        return was_busy

    def run(self, *inputs: SchedulerInput, limit: int = 20_000) -> dict[str, Answer]:
        """Until idle."""
        self.send(*inputs)
        for _ in range(limit):
            if not self.step() and self.scheduler.is_idle:
                return self.outbox.answers
        raise AssertionError(f"not idle after {limit} steps")

    def ask(self, prompt: Sequence[int], max_new_tokens: int | None, **options: object) -> Answer:
        """Runs one request alone."""
        request = generate(f"ask-{len(self.outbox.answers)}", prompt, max_new_tokens, **options)
        return self.run(request)[request.rid]

    def used(self) -> int:
        return self.memory.used()

    def controls(self) -> list[ControlOutput]:
        return [output for output in self.outbox.sent if isinstance(output, ControlOutput)]


_SAMPLING = set(SamplingParams.__struct_fields__)


def generate(
    rid: str, prompt: Sequence[int], max_new_tokens: int | None = 8, **options: object
) -> GenerateInput:
    """A request; options are fields of SamplingParams or of GenerateInput."""
    sampling = {name: value for name, value in options.items() if name in _SAMPLING}
    others = {name: value for name, value in options.items() if name not in _SAMPLING}
    params = SamplingParams(max_new_tokens=max_new_tokens, **sampling)  # type: ignore[arg-type]
    return GenerateInput(
        rid=rid,
        input_ids=list(prompt),
        sampling=params.normalized(),
        **others,  # type: ignore[arg-type]
    )


def prompt_of(length: int, seed: int = 0) -> list[int]:
    """Different seeds differ from the first token on."""
    state, ids = seed * 31 + 17, [seed % (VOCAB - 1)]
    while len(ids) < length:
        state = (state * 1103515245 + 12345) % (1 << 31)
        ids.append(state % (VOCAB - 1))
    return ids[:length]
