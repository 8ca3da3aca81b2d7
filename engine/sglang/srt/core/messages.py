"""What the launcher process and the scheduler process say to each other: msgpack over ZMQ.

Both directions are tagged unions, so one decoder serves a socket. The scheduler sends one
`StepOutput` per step, never one message per request.
"""

import msgspec

from sglang.srt.core.kv_events import KvEvent
from sglang.srt.core.sampling_params import SamplingParams

PROTOCOL_VERSION = 1
MAX_MESSAGE = 500  # characters
QUEUE_FULL = "The request queue is full."


# ------------------------------------------------------------------ launcher → scheduler


class SessionRef(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Which tokens of a session a request continues."""

    id: str
    rid: str | None = None  # request to branch from; None: from the start of the session
    offset: int | None = None  # tokens of that request that are kept; None: all
    replace: bool = False  # what came after that request is dropped
    drop_previous_output: bool = False  # only that request's prompt is kept


class GenerateInput(msgspec.Struct, tag="generate", kw_only=True, omit_defaults=True):
    """One answer wanted. `n` answers are `n` inputs with ids of their own."""

    rid: str
    input_ids: list[int]
    sampling: SamplingParams
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = 0
    token_ids_logprob: list[int] = []
    wants_embedding: bool = False  # the prompt's vector, and no tokens
    stream: bool = True
    priority: int | None = None
    extra_key: str | None = None
    lora_name: str | None = None  # adapter
    lora_id: str | None = None  # of the adapter as it is loaded now; found by its name
    routing_key: str | None = None  # requests of one key are scheduled together by `routing-key`
    session: SessionRef | None = None
    answer_index: int = 0
    custom_logit_processor: str | None = None  # a registered name, or an uploaded class
    require_reasoning: bool = False  # the constraint, if any, begins after the reasoning
    deadline: float | None = None  # time.monotonic() of this machine


class AbortInput(msgspec.Struct, tag="abort", kw_only=True):
    """Ends requests by their exact ids; an empty list with `all` ends every one."""

    rids: list[str] = []
    all: bool = False
    message: str = "Aborted by the client"


class ControlInput(msgspec.Struct, tag="control", kw_only=True):
    """An administrative operation; answered by a `ControlOutput` with the same id."""

    id: int
    name: str
    args: dict[str, object] = {}


class ShutdownInput(msgspec.Struct, tag="shutdown"):
    """The scheduler aborts what runs and leaves its loop."""


SchedulerInput = GenerateInput | AbortInput | ControlInput | ShutdownInput


# ------------------------------------------------------------------ scheduler → launcher


def clipped(text: str) -> str:
    """A message that may repeat what somebody sent: it travels in headers, which are bounded, as
    UTF-8, which has no halves of surrogate pairs."""
    text = text.encode(errors="replace").decode()
    if len(text) <= MAX_MESSAGE:
        return text
    return f"{text[:MAX_MESSAGE]} … ({len(text)} characters)"


def described(error: BaseException) -> str:
    """Kind and text of an error that others wrote: making its text may fail too."""
    try:
        text = str(error)
    except Exception as another:  # noqa: BLE001 - foreign code may raise anything
        text = f"without a text, {type(another).__name__} when it was asked for"
    return f"{type(error).__name__}: {text}"


class FinishReason(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Why an answer ended. `matched` goes with `stop`; message and status go with `abort`."""

    type: str  # stop | length | abort
    matched: int | str | None = None
    message: str | None = None
    status_code: int | None = None

    def __post_init__(self) -> None:
        if self.message is not None:
            self.message = clipped(self.message)


class ConstraintTooComplex(ValueError):
    """An answer has come to where its constraint takes more than it may: the client can mend it."""


def grammar_failed(error: Exception) -> FinishReason:
    """No answer goes on without its constraint."""
    if isinstance(error, ConstraintTooComplex):
        message = f"The constraint cannot be honoured: {error}; simplify it"
        return FinishReason(type="abort", message=message, status_code=400)
    message = f"The grammar backend failed: {described(error)}"
    return FinishReason(type="abort", message=message, status_code=500)


class TopRow(msgspec.Struct, array_like=True):
    """Alternatives at one position: equally long lists, best first."""

    logprobs: list[float]
    token_ids: list[int]


class LogprobRows(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Logprobs of consecutive positions. `top` and `chosen` are empty or as long as `token_ids`."""

    logprobs: list[float | None] = []
    token_ids: list[int] = []
    top: list[TopRow | None] = []
    chosen: list[TopRow | None] = []


class RequestTimes(msgspec.Struct, kw_only=True, omit_defaults=True):
    """When a request passed its stages, in seconds of this machine's `time.monotonic()`.

    A retraction sends it back to the queue, so it may be admitted again. None: not reached.
    """

    received: float = 0.0  # by the scheduler
    compiled: float | None = None  # it waits for its grammar no more
    admissions: list[float] = []  # to a batch
    chunks: list[tuple[float, int]] = []  # end of each prefill pass, and the tokens it computed
    prefilled: float | None = None  # the whole prompt is computed for the first time
    retractions: list[float] = []
    finished: float = 0.0


class RequestOutput(msgspec.Struct, kw_only=True, omit_defaults=True):
    """News of one request: its new tokens, and its end if it ended."""

    rid: str
    token_ids: list[int] = []
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cached_tokens_details: dict[str, int] | None = None  # tokens by tier: device, host, storage
    num_retractions: int = 0
    finish: FinishReason | None = None
    output_logprobs: LogprobRows | None = None
    input_logprobs: LogprobRows | None = None  # once, with the first output
    times: RequestTimes | None = None  # so far, with the first tokens; whole with `finish`
    embedding: list[float] | None = None


class LoadSnapshot(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Load and cache counters of one rank after a step. Token counts unless the name says else."""

    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    num_used_tokens: int = 0
    num_evictable_tokens: int = 0
    num_waiting_uncached_tokens: int = 0  # by what each request found when last looked up
    max_total_num_tokens: int = 0
    max_running_requests: int = 0
    gen_throughput: float = 0.0  # tokens per second
    prompt_tokens_total: int = 0
    cached_tokens_total: int = 0
    generation_tokens_total: int = 0
    evicted_tokens_total: int = 0
    num_requests_total: int = 0
    num_aborted_requests_total: int = 0
    num_retracted_requests_total: int = 0
    new_token_ratio: float = 0.0
    num_steps: int = 0
    num_grammar_queue_reqs: int = 0  # of those that wait: their grammar is being compiled
    num_retracted_reqs: int = 0  # of those that wait: they lost their memory
    num_so_requests_total: int = 0  # with a constraint
    num_grammar_total: int = 0  # constraints looked up
    num_grammar_cache_hit_total: int = 0
    num_grammar_timeout_total: int = 0
    num_grammar_aborted_total: int = 0
    num_grammars_cached: int = 0
    grammar_cache_bytes: int = 0
    prefill_compute_tokens_total: int = 0  # of passes, so prompts that are computed again count
    prefill_cache_tokens_total: int = 0  # taken from the cache at every admission
    decode_tokens_total: int = 0  # of passes
    load_back_tokens_total: int = 0
    prefetched_tokens_total: int = 0
    backuped_tokens_total: int = 0
    host_used_tokens: int = 0
    host_total_tokens: int = 0  # 0: there is no host tier
    swa_used_tokens: int = 0  # of the pool of layers with a window
    swa_total_tokens: int = 0  # 0: there is no such pool
    num_paused_reqs: int = 0  # that a pause of generation holds, wherever they are
    cached_host_tokens_total: int = 0  # of `cached_tokens_total`: they came from host memory
    cached_storage_tokens_total: int = 0  # of the same: from storage
    lora_slots_used: int = 0  # places of the device that adapters have
    lora_slots_total: int = 0

    @property
    def cache_hit_rate(self) -> float:
        """Share of all prompt tokens that came from the cache."""
        return (
            self.cached_tokens_total / self.prompt_tokens_total if self.prompt_tokens_total else 0.0
        )

    @property
    def num_free_tokens(self) -> int:
        return max(self.max_total_num_tokens - self.num_used_tokens - self.num_evictable_tokens, 0)

    @property
    def utilization(self) -> float:
        """Running requests, as a share of the most that may run."""
        most = self.max_running_requests
        return self.num_running_reqs / most if most else 0.0

    @property
    def token_usage(self) -> float:
        return (
            self.num_used_tokens / self.max_total_num_tokens if self.max_total_num_tokens else 0.0
        )


class StepOutput(msgspec.Struct, tag="step", kw_only=True, omit_defaults=True):
    """All news of one scheduler step."""

    outputs: list[RequestOutput]
    load: LoadSnapshot
    kv_events: list[KvEvent] = []  # of the prefix cache, in order; empty until somebody wants them
    durations: dict[str, list[float]] = {}  # seconds of `eviction`, `load_back`, `grammar`


class ControlOutput(msgspec.Struct, tag="control", kw_only=True, omit_defaults=True):
    """The answer to a `ControlInput`; `error` says why there is no result."""

    id: int
    result: dict[str, object] = {}
    error: str | None = None


class LoadProgress(msgspec.Struct, tag="progress", kw_only=True):
    """Where start-up is: `phase` in words, bytes done of bytes in all (0 = unknown)."""

    phase: str
    done_bytes: int = 0
    total_bytes: int = 0


class ModelCard(msgspec.Struct, kw_only=True):
    """What the launcher tells gateways about the served model."""

    architectures: list[str]
    model_type: str
    vocab_size: int
    context_len: int
    eos_token_ids: list[int]
    bos_token_id: int | None
    pad_token_id: int | None
    tokenizer_folder: str  # has tokenizer.json, tokenizer_config.json, config.json, template
    default_sampling_params: dict[str, float | int]


class Ready(msgspec.Struct, tag="ready", kw_only=True):
    """Sent once, after the warm-up generation."""

    protocol_version: int
    model: ModelCard
    max_total_num_tokens: int
    max_req_input_len: int
    max_running_requests: int
    page_size: int
    kv_cell_bytes: int
    kv_cache_dtype: str = ""  # what the pool stores, as torch names it
    weight_bytes: int
    startup_seconds: float


class Failed(msgspec.Struct, tag="failed", kw_only=True):
    """The scheduler process cannot go on; it ends with a non-zero exit right after."""

    message: str

    def __post_init__(self) -> None:
        self.message = clipped(self.message)


SchedulerOutput = StepOutput | ControlOutput | LoadProgress | Ready | Failed
