"""How the scheduler process comes up: sockets, parts, warm-up, and what it reports."""

import gc
import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import zmq

from sglang.srt.constrained.base_grammar_backend import BaseGrammarBackend, create_grammar_backend
from sglang.srt.constrained.grammar_manager import why_refused
from sglang.srt.constrained.vocabulary import UnfitVocabulary
from sglang.srt.core.config import PortArgs
from sglang.srt.core.messages import (
    PROTOCOL_VERSION,
    GenerateInput,
    LoadProgress,
    ModelCard,
    Ready,
)
from sglang.srt.core.sampling_params import SamplingParams
from sglang.srt.managers.admission import Limits
from sglang.srt.managers.inbox import Inbox
from sglang.srt.managers.outbox import Outbox
from sglang.srt.managers.parts import SchedulerParts, Sink, Worker
from sglang.srt.managers.stop_rules import stop_text_factory
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.mem_cache.base_prefix_cache import CacheInitParams
from sglang.srt.mem_cache.registry import TreeCacheBuildContext, create_tree_cache
from sglang.srt.mem_cache.request_memory import RequestMemory
from sglang.srt.mem_cache.swa_memory import SWATokenToKVPoolAllocator
from sglang.srt.model_executor.memory import available_bytes
from sglang.srt.model_loader.assets import ensure_assets
from sglang.srt.model_loader.fingerprint import weights_fingerprint
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

if TYPE_CHECKING:
    from sglang.srt.managers.scheduler import Scheduler

logger = logging.getLogger(__name__)
WARM_UP_RID = "sglang-warm-up"


@contextmanager
def connect(ports: PortArgs) -> Iterator[tuple[Inbox, Outbox]]:
    """Both sockets to the launcher. What was sent is flushed when the block is left."""
    context = zmq.Context()
    pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    try:
        for socket in (pull, push):
            socket.set_hwm(0)
        pull.connect(ports.scheduler_input_ipc_name)
        push.connect(ports.scheduler_output_ipc_name)
        yield Inbox(pull, wake_fds=end_signals()), Outbox(push)
    finally:
        pull.close(linger=0)
        push.close()
        context.term()


def end_signals() -> list[int]:
    """Descriptors that become readable when the process has to end.

    Those are the parent's end, and SIGTERM unless whoever started the process ignores it.
    """
    fds = []
    parent = multiprocessing.parent_process()
    if parent is not None:
        fds.append(parent.sentinel)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        read_end, write_end = os.pipe()
        signal.signal(signal.SIGTERM, lambda number, frame: _wake(write_end))
        fds.append(read_end)
    return fds


def _wake(write_end: int) -> None:
    os.write(write_end, b"\0")


def report_loading(outbox: Sink) -> Callable[[int, int], None]:
    """Sends how many bytes of the weights are loaded."""

    def report(done_bytes: int, total_bytes: int) -> None:
        outbox.send(
            LoadProgress(phase="loading weights", done_bytes=done_bytes, total_bytes=total_bytes)
        )

    return report


def worker_around(target: TpModelWorker, server_args: ServerArgs) -> Worker:
    """What runs the batches: the worker of `--speculative-algorithm`, else the target itself."""
    algorithm = SpeculativeAlgorithm.from_string(server_args.speculative_algorithm)
    if algorithm.is_none():
        return target
    worker_class = algorithm.create_worker(server_args)
    worker = worker_class(server_args=server_args, gpu_id=target.gpu_id, target_worker=target)
    if not callable(getattr(worker, "forward_batch_generation", None)):
        raise ValueError(
            f"the worker of --speculative-algorithm {server_args.speculative_algorithm} is a "
            f"{type(worker).__name__} without forward_batch_generation; see SpecWorker of "
            "sglang.srt.speculative.spec_worker"
        )
    built: Worker = worker
    return built


def keep_for_good() -> None:
    """Called when everything is loaded: the garbage collector looks at what is there no more.

    Full collections over some 200,000 objects of modules would be pauses between two tokens.
    """
    gc.collect()
    gc.freeze()


def parts_of(
    target: TpModelWorker, worker: Worker, server_args: ServerArgs, inbox: Inbox, outbox: Outbox
) -> SchedulerParts:
    """The parts of the scheduler that serves with this worker and the target's memory."""
    grammar_backend = _grammar_backend(target, server_args)
    return SchedulerParts(
        inbox=inbox,
        outbox=outbox,
        worker=worker,
        memory=_request_memory(target, server_args),
        config=target.schedule_config,
        limits=limits_of(
            target,
            grammar_backend=grammar_backend,
            allows_uploaded_processors=server_args.enable_custom_logit_processor,
        ),
        make_stop_text=stop_text_factory(tokenizer_folder(server_args)),
        grammar_backend=grammar_backend,
        adapters=target.runner.lora_manager,
        release_caches=target.release_caches,
    )


def _grammar_backend(worker: TpModelWorker, server_args: ServerArgs) -> BaseGrammarBackend | None:
    """None where constraints are refused, as by a model that answers with vectors."""
    if server_args.grammar_backend == "none" or worker.is_embedding:
        return None
    from sglang_router.text import Tokenizer

    model, tokenizer = worker.model_config, Tokenizer(tokenizer_folder(server_args))
    try:
        return create_grammar_backend(
            server_args, tokenizer, model.vocab_size, set(model.eos_token_ids)
        )
    except UnfitVocabulary as error:
        logger.warning("Structured output is refused, as by --grammar-backend none: %s", error)
        return None


def limits_of(
    worker: TpModelWorker,
    *,
    grammar_backend: BaseGrammarBackend | None = None,
    allows_uploaded_processors: bool = False,
) -> Limits:
    return Limits(
        context_len=worker.cache_config.context_len,
        pool_len=worker.memory.token_to_kv_pool_allocator.size,
        vocab_size=worker.model_config.vocab_size,
        eos_token_ids=frozenset(worker.model_config.eos_token_ids),
        why_refused=None if grammar_backend is None else partial(why_refused, grammar_backend),
        allows_uploaded_processors=allows_uploaded_processors,
        is_embedding=worker.is_embedding,
    )


def _request_memory(worker: TpModelWorker, server_args: ServerArgs) -> RequestMemory:
    config, pools = worker.cache_config, worker.memory
    has_tiers = server_args.enable_hierarchical_cache
    params = CacheInitParams(
        disable=config.disable_radix_cache,
        req_to_token_pool=pools.req_to_token_pool,
        token_to_kv_pool_allocator=pools.token_to_kv_pool_allocator,
        page_size=config.page_size,
        eviction_policy=config.radix_eviction_policy,
        enable_kv_cache_events=server_args.kv_events.is_on,
    )
    context = TreeCacheBuildContext(
        server_args=server_args,
        params=params,
        disable_radix_cache=config.disable_radix_cache,
        effective_chunked_prefill_size=worker.schedule_config.chunked_prefill_size,
        tp_worker=worker,
        enable_hierarchical_cache=has_tiers,
        is_hybrid_swa=isinstance(pools.token_to_kv_pool_allocator, SWATokenToKVPoolAllocator),
        model_config=worker.model_config,
        weights_fingerprint=_fingerprint(worker, server_args) if has_tiers else "",
        host_memory_bytes=_host_memory_bytes(worker) if has_tiers else None,
    )
    return RequestMemory(
        create_tree_cache(context), pools.req_to_token_pool, pools.token_to_kv_pool_allocator
    )


def _fingerprint(worker: TpModelWorker, server_args: ServerArgs) -> str:
    """Changes with whatever changes the KV of a token."""
    runner, path = worker.runner, worker.model_config.model_path
    return weights_fingerprint(path, server_args.load_format == "dummy", runner.dtype)


def _host_memory_bytes(worker: TpModelWorker) -> int:
    """What a second tier may take. A pool on the CPU takes its memory only as it is used."""
    runner = worker.runner
    on_cpu = runner.device.type == "cpu"
    promised = worker.cache_config.max_total_tokens * runner.kv_dims.cell_bytes if on_cpu else 0
    return max(available_bytes(torch.device("cpu")) - promised, 0)


def warm_up(scheduler: "Scheduler") -> None:
    """One real generation: kernels are loaded and a broken model shows before traffic comes."""
    limits = scheduler.limits
    num_tokens = 0 if limits.is_embedding else min(2, limits.context_len - 1)
    params = SamplingParams(max_new_tokens=num_tokens, ignore_eos=True)
    token = min(limits.eos_token_ids, default=0)
    scheduler.process_input_requests(
        [
            GenerateInput(
                rid=WARM_UP_RID,
                input_ids=[token],
                sampling=params.normalized(),
                wants_embedding=limits.is_embedding,
            )
        ]
    )
    req = scheduler.live.get(WARM_UP_RID)
    while batch := scheduler.get_next_batch_to_run():
        if scheduler.lane is None:
            scheduler.process_batch_result(batch, scheduler.run_batch(batch))
        else:  # in the thread that will compute later
            scheduler.lane.launch(batch)
            scheduler.lane.settle()
    reason = req.finished_reason if req is not None else None
    if reason is None or reason.type != "length":
        why = reason.message if reason is not None else "it did not end"
        raise RuntimeError(f"The warm-up generation failed: {why}")
    # The warm-up is no traffic: it leaves neither counters nor a cached prefix.
    scheduler.memory.clear()
    scheduler.stats.reset()


def ready_message(worker: TpModelWorker, server_args: ServerArgs, startup_seconds: float) -> Ready:
    config, limits = worker.model_config, limits_of(worker)
    card = ModelCard(
        architectures=list(config.architectures),
        model_type=config.model_type,
        vocab_size=config.vocab_size,
        context_len=limits.context_len,
        eos_token_ids=list(config.eos_token_ids),
        bos_token_id=config.bos_token_id,
        pad_token_id=config.pad_token_id,
        tokenizer_folder=tokenizer_folder(server_args),
        default_sampling_params=config.default_sampling_params,
    )
    return Ready(
        protocol_version=PROTOCOL_VERSION,
        model=card,
        max_total_num_tokens=limits.pool_len,
        max_req_input_len=limits.max_req_input_len,
        max_running_requests=worker.schedule_config.max_running_requests,
        page_size=worker.cache_config.page_size,
        kv_cell_bytes=worker.runner.kv_dims.cell_bytes,
        kv_cache_dtype=str(worker.runner.kv_dims.dtype).removeprefix("torch."),
        weight_bytes=worker.runner.weight_bytes,
        startup_seconds=startup_seconds,
    )


def tokenizer_folder(server_args: ServerArgs) -> str:
    """The folder with tokenizer.json, template and configuration; made when it is not there."""
    return str(ensure_assets(Path(server_args.tokenizer_path or server_args.model_path)))
