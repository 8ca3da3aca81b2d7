"""What a worker can tell and do besides generating, independent of how it is asked."""

import asyncio
import json
import time
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec

from sglang.srt.core.messages import Ready
from sglang.srt.entrypoints import event_publisher
from sglang.srt.entrypoints.adapters import Adapters
from sglang.srt.entrypoints.observers import Observers
from sglang.srt.entrypoints.scheduler_client import (
    SchedulerClient,
    SchedulerUnavailable,
    WorkerState,
)
from sglang.srt.entrypoints.tokenizer_bundle import TokenizerBundle
from sglang.srt.extension_points import GRAMMAR_BACKENDS
from sglang.srt.observability.answer_watch import Watches
from sglang.srt.observability.metrics import EngineMetrics
from sglang.srt.observability.series import WorkerSnapshot
from sglang.srt.server_args import ServerArgs
from sglang.version import __version__

LOAD_SECTIONS = ("core", "memory", "spec", "lora", "disagg", "queues", "all")
NOT_PARALLEL = {"tp_size": 1, "pp_size": 1, "dp_size": 1}
GIGABYTE = 1e9
NO_TOKEN = -1  # bos or pad id of a model that has none


class EngineService:
    """Answers for one worker. Methods that need the model raise SchedulerUnavailable before it is
    loaded; ValueError means the caller asked for something that does not exist.
    """

    def __init__(self, args: ServerArgs, client: SchedulerClient) -> None:
        self.args = args
        self.client = client
        self.start_time = time.time()  # seconds since the epoch
        self.metrics = EngineMetrics(
            str(args.served_model_name),
            self._snapshot,
            buckets=args.histogram_buckets,
            extra_labels=args.metric_labels,
        )
        self.adapters = Adapters(args, client.control)
        self.observers = Observers(args)
        client.watches = Watches(self.metrics.latencies, self.observers.active)
        if self.metrics.latencies is not None:
            client.on_durations = self.metrics.latencies.worked
        self._bundle: asyncio.Task[TokenizerBundle] | None = None

    @property
    def ready(self) -> Ready:
        """The scheduler's card; raises SchedulerUnavailable while there is none."""
        if not self.client.became_ready.done():
            raise SchedulerUnavailable(f"The model is not loaded yet ({self.client.reason})")
        return self.client.ready

    def health(self) -> tuple[bool, str]:
        """Whether requests are taken, and if not, why."""
        return self.client.state is WorkerState.READY, self.client.reason or "ok"

    # -------------------------------------------------------------- descriptions

    def model_info(self) -> dict[str, Any]:
        """The model card, by the names of `GetModelInfoResponse`."""
        model, args = self.ready.model, self.args
        return {
            "model_path": args.model_path,
            "tokenizer_path": self._tokenizer_path(),
            "served_model_name": args.served_model_name,
            "is_generation": not args.is_embedding,
            "weight_version": args.weight_version,
            "preferred_sampling_params": args.preferred_sampling_params or "",
            "default_sampling_params_json": json.dumps(self._default_sampling()),
            "max_context_length": model.context_len,
            "max_req_input_len": self.ready.max_req_input_len,
            "vocab_size": model.vocab_size,
            "supports_vision": False,
            "model_type": model.model_type,
            "architectures": model.architectures,
            "eos_token_ids": model.eos_token_ids,
            "bos_token_id": NO_TOKEN if model.bos_token_id is None else model.bos_token_id,
            "pad_token_id": NO_TOKEN if model.pad_token_id is None else model.pad_token_id,
        }

    def server_info(self) -> dict[str, Any]:
        """Options as resolved, the scheduler's sizes and its live counters, in one flat object."""
        return {
            **self.server_args(),
            **self.scheduler_info(),
            "version": __version__,
            "uptime_seconds": time.time() - self.start_time,
            "kv_events": event_publisher.describe(self.args.kv_events, self.ready.page_size),
            "internal_states": [self.internal_state()],
        }

    def server_args(self) -> dict[str, Any]:
        """The options, with what loading the model made of them."""
        ready = self.ready
        return {
            **self.args.public_values(),
            **NOT_PARALLEL,
            "tokenizer_path": self._tokenizer_path(),
            "context_length": ready.model.context_len,
            "max_running_requests": ready.max_running_requests,
            "max_total_tokens": ready.max_total_num_tokens,
            "page_size": ready.page_size,
            "kv_cache_dtype": ready.kv_cache_dtype,
            "grammar_backend_source": self._grammar_backend_source(),
        }

    def _grammar_backend_source(self) -> str | None:
        """Who defines what `grammar_backend` names: `sglang.…`, or a plugin that took the name."""
        name = self.args.grammar_backend
        return GRAMMAR_BACKENDS.source(name) if name in GRAMMAR_BACKENDS else None

    def scheduler_info(self) -> dict[str, Any]:
        ready = self.ready
        return {
            "status": self.client.state.value,
            "max_total_num_tokens": ready.max_total_num_tokens,
            "max_req_input_len": ready.max_req_input_len,
            "startup_time": ready.startup_seconds,
        }

    def internal_state(self) -> dict[str, Any]:
        """The scheduler's counters as of its last step, and sizes in gigabytes."""
        load, ready = self.client.load, self.ready
        return {
            **msgspec.structs.asdict(load),
            "cache_hit_rate": load.cache_hit_rate,
            "cache_evictable_tokens": load.num_evictable_tokens,
            "cache_evicted_tokens_total": load.evicted_tokens_total,
            "token_usage": load.token_usage,
            "kv_bytes_per_token": ready.kv_cell_bytes,
            "last_gen_throughput": load.gen_throughput,
            "effective_max_running_requests_per_dp": ready.max_running_requests,
            "startup_time": ready.startup_seconds,
            "memory_usage": {
                "weight": ready.weight_bytes / GIGABYTE,
                "kvcache": ready.kv_cell_bytes * ready.max_total_num_tokens / GIGABYTE,
                "kv_cell_bytes": ready.kv_cell_bytes,
                "graph": 0.0,
                "token_capacity": ready.max_total_num_tokens,
            },
        }

    def loads(self, include: list[str]) -> dict[str, Any]:
        """`/v1/loads`: one record, by the names of `GetLoadsResponse`."""
        unknown = [name for name in include if name not in LOAD_SECTIONS]
        if unknown:
            raise ValueError(
                f"include must hold names of {', '.join(LOAD_SECTIONS)}; got {unknown[0]!r}"
            )
        everything = "all" in include
        record = self._core_load()
        if everything or "memory" in include:
            record["memory"] = self._memory_load()
        if everything or "queues" in include:
            record["queues"] = self._queue_load()
        if self.args.enable_lora and (everything or "lora" in include):
            record["lora"] = self._adapter_load()
        return {
            "timestamp": datetime.now(timezone.utc).isoformat(),
            "version": __version__,
            "dp_rank_count": 1,
            "loads": [record],
        }

    def _core_load(self) -> dict[str, Any]:
        load = self.client.load
        running = load.num_running_reqs
        return {
            "dp_rank": 0,
            "num_running_reqs": running,
            "num_waiting_reqs": load.num_waiting_reqs,
            "num_total_reqs": running + load.num_waiting_reqs,
            "num_waiting_uncached_tokens": load.num_waiting_uncached_tokens,
            "num_used_tokens": load.num_used_tokens,
            "max_total_num_tokens": load.max_total_num_tokens,
            "token_usage": load.token_usage,
            "gen_throughput": load.gen_throughput,
            "cache_hit_rate": load.cache_hit_rate,
            "utilization": load.utilization,
            "max_running_requests": load.max_running_requests,
        }

    def _queue_load(self) -> dict[str, int]:
        """`grammar` and `retracted` are parts of `waiting`; a pause holds `paused` of all."""
        load = self.client.load
        return {
            "waiting": load.num_waiting_reqs,
            "grammar": load.num_grammar_queue_reqs,
            "paused": load.num_paused_reqs,
            "retracted": load.num_retracted_reqs,
        }

    def _adapter_load(self) -> dict[str, Any]:
        used, total = self.client.load.lora_slots_used, self.client.load.lora_slots_total
        share = used / total if total else 0.0
        return {"slots_used": used, "slots_total": total, "utilization": share}

    def _memory_load(self) -> dict[str, Any]:
        ready = self.ready
        return {
            "weight_gb": ready.weight_bytes / GIGABYTE,
            "kv_cache_gb": ready.kv_cell_bytes * ready.max_total_num_tokens / GIGABYTE,
            "graph_gb": 0.0,
            "token_capacity": ready.max_total_num_tokens,
        }

    def _default_sampling(self) -> dict[str, Any]:
        """What a gateway fills in where a request is silent."""
        own = self.ready.model.default_sampling_params
        model = own if self.args.sampling_defaults == "model" else {}
        return {**model, **self.args.preferred_sampling}

    def _tokenizer_path(self) -> str:
        """A folder with tokenizer.json: gateways on this machine read it instead of the bundle."""
        return self.ready.model.tokenizer_folder

    def _snapshot(self) -> WorkerSnapshot:
        known = self.client.state in (WorkerState.READY, WorkerState.DRAINING)
        ready = self.ready if known and self.client.became_ready.done() else None
        return WorkerSnapshot(self.client.load, ready)

    # -------------------------------------------------------------- operations

    async def tokenizer_bundle(self) -> TokenizerBundle:
        """Packed once, at the first call; again when that failed."""
        folder = Path(self.ready.model.tokenizer_folder)
        template = Path(self.args.chat_template) if self.args.chat_template else None
        if self._bundle is None or (self._bundle.done() and self._bundle.exception()):
            pack = asyncio.to_thread(TokenizerBundle.from_folder, folder, template)
            self._bundle = asyncio.create_task(pack)
        return await asyncio.shield(self._bundle)

    async def flush_cache(self, timeout: float) -> tuple[bool, str]:
        """Empties the prefix cache when no request runs, waiting for that up to `timeout` s."""
        if timeout > 0:
            with suppress(asyncio.TimeoutError):  # the scheduler says what still runs
                await asyncio.wait_for(self.client.idle.wait(), timeout)
        result = await self.client.control("flush_cache", {})
        return bool(result["success"]), str(result["message"])
