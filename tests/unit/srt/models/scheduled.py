"""A model behind the scheduler, with the worker and the pools that a server has."""

from pathlib import Path
from typing import Any

from sglang.srt.core.messages import GenerateInput
from sglang.srt.managers.admission import Limits
from sglang.srt.managers.parts import SchedulerParts
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.mem_cache.base_prefix_cache import CacheInitParams
from sglang.srt.mem_cache.registry import TreeCacheBuildContext, create_tree_cache
from sglang.srt.mem_cache.request_memory import RequestMemory
from sglang.srt.server_args import ServerArgs
from tests.unit.srt.managers.engine import EmptyInbox, RecordingOutbox, WordStops, generate
from tests.unit.srt.models.reference import VOCAB_SIZE


class ScheduledModel:
    """Options are those of the server."""

    def __init__(self, folder: Path, **options: Any) -> None:
        args = ServerArgs(model_path=str(folder), device="cpu", dtype="float32", **options)
        self.worker = TpModelWorker(args)
        pools = self.worker.memory
        params = CacheInitParams(
            req_to_token_pool=pools.req_to_token_pool,
            token_to_kv_pool_allocator=pools.token_to_kv_pool_allocator,
            page_size=args.page_size,
        )
        context = TreeCacheBuildContext(args, params, args.disable_radix_cache)
        self.memory = RequestMemory(
            create_tree_cache(context), pools.req_to_token_pool, pools.token_to_kv_pool_allocator
        )
        self.outbox = RecordingOutbox()
        limits = Limits(
            self.worker.cache_config.context_len, self.memory.size, VOCAB_SIZE, frozenset()
        )
        self.scheduler = Scheduler(
            SchedulerParts(
                inbox=EmptyInbox(),
                outbox=self.outbox,
                worker=self.worker,
                memory=self.memory,
                config=self.worker.schedule_config,
                limits=limits,
                make_stop_text=WordStops,
                adapters=self.worker.runner.lora_manager,
            )
        )
        self.num_retractions = 0

    def answers(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        """To all prompts at once, greedily. Memory is checked after every step."""
        rids = [f"r{i}" for i in range(len(prompts))]
        return self.run(
            [
                generate(rid, prompt, num_tokens, temperature=0.0, ignore_eos=True)
                for rid, prompt in zip(rids, prompts, strict=True)
            ]
        )

    def run(self, requests: list[GenerateInput]) -> list[list[int]]:
        """Their answers, in order."""
        self.scheduler.process_input_requests(requests)
        for _ in range(10_000):
            batch = self.scheduler.get_next_batch_to_run()
            if batch is None:
                self.scheduler.on_idle()
            else:
                self.scheduler.process_batch_result(batch, self.scheduler.run_batch(batch))
            self.memory.check_integrity(self.scheduler.live.holders())
            if batch is None and self.scheduler.is_idle:
                break
        answers = [self.outbox.answers[request.rid] for request in requests]
        self.num_retractions += sum(answer.last.num_retractions for answer in answers)
        return [answer.token_ids for answer in answers]
