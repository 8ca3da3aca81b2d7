"""The interface of a speculative worker: it stands between the scheduler and the target model."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang.srt.core.batch import GenerationBatchResult, ScheduleBatch
    from sglang.srt.managers.tp_worker import TpModelWorker
    from sglang.srt.server_args import ServerArgs


class SpecWorker(ABC):
    """Built once, in the scheduler process, when the target model is loaded.

    The class that a registered factory returns is called with these three keywords; it need not
    derive from this one. Whatever a subclass overrides, a request gets the tokens that the target
    model alone would give it.
    """

    def __init__(
        self, *, server_args: "ServerArgs", gpu_id: int, target_worker: "TpModelWorker"
    ) -> None:
        self.server_args = server_args
        self.gpu_id = gpu_id
        self.target_worker = target_worker

    @abstractmethod
    def forward_batch_generation(self, batch: "ScheduleBatch") -> "GenerationBatchResult":
        """Called by the scheduler for every step, in place of the target worker's method.

        One next token per request: the batch holds a KV slot for each, and no more than one is
        taken from a step. The KV of the batch's tokens must be written by the target model.
        """
