"""A request inside the scheduler: its tokens, its KV pages, its end."""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from sglang.srt.core.adapter import Adapter
from sglang.srt.core.messages import FinishReason, LogprobRows, RequestTimes
from sglang.srt.core.sampling_params import SamplingParams

if TYPE_CHECKING:
    import torch


class RequestState(Enum):
    COMPILING = auto()  # its grammar is not known yet
    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


@dataclass(eq=False)
class Req:
    """One answer in the making.

    Lengths are in tokens. `fill_ids` = prompt plus output is what must stand in the KV pool before
    the next token can be computed; its first `len(prefix_indices)` tokens stand there already.
    """

    rid: str
    origin_input_ids: list[int]
    sampling_params: SamplingParams
    eos_token_ids: frozenset[int] = frozenset()
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = 0
    token_ids_logprob: list[int] = field(default_factory=list)
    wants_embedding: bool = False
    stream: bool = True
    priority: int | None = None
    extra_key: str | None = None
    adapter: Adapter | None = None
    routing_key: str | None = None
    session_id: str | None = None
    require_reasoning: bool = False
    deadline: float | None = None

    state: RequestState = RequestState.WAITING
    output_ids: list[int] = field(default_factory=list)
    finished_reason: FinishReason | None = None
    times: RequestTimes = field(default_factory=RequestTimes)
    to_finish: FinishReason | None = None  # set while a step runs; ends the request after it

    # KV pool. Owned by the scheduler's memory side; None or empty while waiting.
    req_pool_idx: int | None = None
    prefix_indices: "torch.Tensor | None" = None  # [cached_len] int64 slots
    last_node: Any = None  # node of the radix tree that is locked for this request
    kv_committed_len: int = 0  # leading tokens whose slots stand in the row of req_to_token
    kv_pending_len: int = 0  # trailing ones of those, in passes whose result is not known yet
    cache_protected_len: int = 0  # leading slots that the prefix cache owns; the rest are ours
    window_start: int = 0  # leading tokens that gave their place in a window pool up
    cached_tokens: int = 0  # prompt tokens that came from the cache at first admission
    prefix_key: Any = None  # what the prefix cache is asked for; made by `key_of`
    loaded_len: int = 0  # tokens that were brought to the device for it
    cached_tokens_details: dict[str, int] | None = None  # by tier; from the first admission on
    found_len: int = 0  # tokens that the prefix cache had when it was last asked
    num_retractions: int = 0

    # Output side.
    num_sent_tokens: int = 0
    output_logprobs: LogprobRows = field(default_factory=LogprobRows)
    input_logprobs: LogprobRows | None = None
    embedding: list[float] | None = None
    text_state: Any = None  # incremental decoder and stop matcher, made when stop strings exist
    grammar: Any = None  # the BaseGrammarObject of this answer alone
    # The CustomLogitProcessor, one object for all requests that name it alike; set at admission.
    logit_processor: Any = None
    has_uploaded_processor: bool = False
    # What it gets of this request: `custom_params` and the request itself as `__req__`.
    logit_processor_params: dict[str, Any] = field(default_factory=dict)
    answer_index: int = 0  # among the answers of one prompt

    def __post_init__(self) -> None:
        assert self.origin_input_ids, "a request has at least one prompt token"

    @property
    def lora_id(self) -> str | None:
        return None if self.adapter is None else self.adapter.lora_id

    @property
    def fill_ids(self) -> list[int]:
        return self.origin_input_ids + self.output_ids

    @property
    def seq_len(self) -> int:
        return len(self.origin_input_ids) + len(self.output_ids)

    @property
    def kv_valid_len(self) -> int:
        """Leading tokens whose keys and values are computed, and stand in their slots."""
        return self.kv_committed_len - self.kv_pending_len

    @property
    def finished(self) -> bool:
        return self.finished_reason is not None

    @property
    def max_new_tokens(self) -> int:
        assert self.sampling_params.max_new_tokens is not None, "clipped at admission"
        return self.sampling_params.max_new_tokens
