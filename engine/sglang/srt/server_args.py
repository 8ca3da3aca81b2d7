"""The options of one engine worker, declared once; parser, checks and docs follow from here."""

import argparse
import copy
import json
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from typing import Annotated as A

from sglang.srt.arg_groups import overrides, parser
from sglang.srt.arg_groups.attention import check_attention_backend, default_attention_backend
from sglang.srt.arg_groups.declaration import (
    Alias,
    Bound,
    Choices,
    Group,
    Option,
    Secret,
    options_of,
)
from sglang.srt.arg_groups.speculative import apply_speculative_algorithm
from sglang.srt.extension_points import (
    ATTENTION_BACKENDS,
    EVICTION_POLICIES,
    GRAMMAR_BACKENDS,
    SCHEDULE_POLICIES,
)

if TYPE_CHECKING:
    from sglang.srt.configs.model_config import ModelConfig

logger = logging.getLogger(__name__)

MODEL = Group("model and tokenizer")
SERVER = Group("server")
ANSWERS = Group("answers")
MEMORY = Group("memory")
SCHEDULING = Group("scheduling")
PROCESS = Group("process")

LOAD_FORMAT_CHOICES = ["auto", "safetensors", "gguf", "dummy"]
DTYPE_CHOICES = ["auto", "half", "float16", "bfloat16", "float", "float32"]
DEVICE_CHOICES = ["cpu", "cuda"]
LOG_LEVELS = ["debug", "info", "warning", "error"]
DEFAULT_CHUNKED_PREFILL_SIZE = 4096
# A step of so many tokens of a small model takes about a second on two cores, and others wait.
CPU_CHUNKED_PREFILL_SIZE = 512
NO_MODEL = "none"
PLACEHOLDERS = (NO_MODEL, "dummy")  # model paths that name no model
PORTS = Bound(ge=1, le=65535)
COUNT = Bound(ge=1)
DAY = 86400.0  # seconds


class SealedError(AttributeError):
    """Somebody wrote to options after they were checked."""


@dataclass
class ServerArgs:
    """Options after parsing. `check_server_args` seals them; from then on nobody writes."""

    model_path: A[
        str, MODEL, Alias("--model"), "Folder with weights, one GGUF file, a hub id, or `demo`."
    ]
    tokenizer_path: A[
        str | None, MODEL, "Folder with tokenizer.json; default: the model's own."
    ] = None
    served_model_name: A[
        str | None, MODEL, "Name that clients use; default: the model path as given."
    ] = None
    load_format: A[
        str,
        MODEL,
        Choices(lambda: LOAD_FORMAT_CHOICES),
        "Format of the weights; auto looks at the files, dummy makes random ones.",
    ] = "auto"
    dtype: A[
        str,
        MODEL,
        Choices(lambda: DTYPE_CHOICES),
        "Type of activations and KV; auto is float32 on a CPU without bfloat16 units.",
    ] = "auto"
    context_length: A[
        int | None,
        MODEL,
        COUNT,
        "Most tokens of a prompt with its answer; default: the model's own limit.",
    ] = None
    download_dir: A[
        str | None, MODEL, "Folder for weights from the hub; default: the hub's cache."
    ] = None
    chat_template: A[
        str | None, MODEL, "File with a Jinja chat template that replaces the model's own."
    ] = None
    weight_version: A[str, MODEL, "Label of the weights, reported with every answer."] = "default"

    host: A[str, SERVER, "Address to listen on."] = "127.0.0.1"
    port: A[int, SERVER, PORTS, "Port of the HTTP server, or of gRPC with --grpc-mode."] = 30000
    grpc_port: A[int | None, SERVER, PORTS, "Port for gateways (gRPC) beside the HTTP server."] = (
        None
    )
    grpc_mode: A[
        bool,
        SERVER,
        Alias("--smg-grpc-mode"),
        "Serve gRPC on --port and no HTTP API; health and metrics are on port + 1.",
    ] = False
    api_key: A[
        str | None, SERVER, Secret(), "Key that HTTP clients must send as a bearer token."
    ] = None
    shutdown_grace_period_secs: A[
        int,
        SERVER,
        Bound(ge=0, le=DAY),
        "Seconds that running requests get to end after SIGTERM.",
    ] = 180
    skip_server_warmup: A[bool, SERVER, "Report ready without a first generation."] = False
    enable_metrics: A[bool, SERVER, "Add latencies of single requests to the metrics."] = False

    preferred_sampling_params: A[
        str | None, ANSWERS, "JSON object of sampling parameters for what a request leaves out."
    ] = None
    sampling_defaults: A[
        str,
        ANSWERS,
        Choices.of("model", "openai"),
        "Where defaults come from: the model's generation_config, or OpenAI's.",
    ] = "model"
    stream_interval: A[int, ANSWERS, COUNT, "New tokens per streamed message."] = 1
    grammar_backend: A[
        str,
        ANSWERS,
        Choices(lambda: GRAMMAR_BACKENDS),
        "What compiles the constraints of requests; none: a request with one is refused.",
    ] = "none"
    random_seed: A[
        int | None,
        ANSWERS,
        Bound(ge=0),
        "Seed of sampling without a seed of its own; default: random.",
    ] = None

    mem_fraction_static: A[
        float | None,
        MEMORY,
        Bound(gt=0, le=1),
        "Share of free memory for weights and KV; default: KV gets half of what is free once the "
        "weights are loaded, at most 4 GiB.",
    ] = None
    max_total_tokens: A[
        int | None, MEMORY, COUNT, "Tokens of the KV pool; default: what memory allows."
    ] = None
    page_size: A[int, MEMORY, COUNT, "Tokens per KV page."] = 1
    disable_radix_cache: A[bool, MEMORY, "Do not reuse KV between requests."] = False
    radix_cache_backend: A[
        str | None,
        MEMORY,
        # Not checked here: programs may register one after they have parsed the options.
        "Name of a registered prefix cache; default: the built-in one.",
    ] = None
    radix_eviction_policy: A[
        str,
        MEMORY,
        Alias("--eviction-policy"),
        Choices(lambda: EVICTION_POLICIES),
        "What the prefix cache drops first.",
    ] = "lru"

    max_running_requests: A[
        int | None, SCHEDULING, COUNT, "Most requests in one batch; default: by the KV pool."
    ] = None
    max_queued_requests: A[
        int | None,
        SCHEDULING,
        COUNT,
        "Most waiting requests, more are refused with 503; none: no limit.",
    ] = 4096
    chunked_prefill_size: A[
        int | None,
        SCHEDULING,
        Bound(ge=-1),
        "Prompt tokens per step; -1 computes a prompt at once. Default: 512 on a CPU, else 4096.",
    ] = None
    max_prefill_tokens: A[int, SCHEDULING, COUNT, "Prompt tokens of one prefill batch."] = 16384
    schedule_policy: A[
        str,
        SCHEDULING,
        Choices(lambda: SCHEDULE_POLICIES),
        "Order of waiting requests: fcfs by arrival, lof by the longest allowed answer, lpm and "
        "dfs-weight by what is cached.",
    ] = "fcfs"
    schedule_conservativeness: A[
        float, SCHEDULING, Bound(gt=0, le=100), "Above 1 admits fewer requests and retracts less."
    ] = 1.0
    attention_backend: A[
        str | None,
        SCHEDULING,
        Choices(lambda: ATTENTION_BACKENDS),
        "Implementation of attention; default: triton on CUDA, else torch_native.",
    ] = None
    speculative_algorithm: A[
        str | None,
        SCHEDULING,
        "Speculative decoding by an algorithm that a plugin registered; default: none.",
    ] = None

    device: A[str | None, PROCESS, Choices(lambda: DEVICE_CHOICES), "Where the model runs."] = "cpu"
    watchdog_timeout: A[
        float,
        PROCESS,
        Bound(gt=0, le=DAY),
        "Seconds without progress of a running batch after which the worker ends.",
    ] = 300.0
    log_level: A[str, PROCESS, Choices(lambda: LOG_LEVELS), "Least level that is logged."] = "info"

    front_door: dict[str, Any] = field(default_factory=dict)  # the HTTP server's own options
    plugin_options: dict[str, Any] = field(default_factory=dict)  # flags that hooks have added

    def __post_init__(self) -> None:
        """Fills the defaults that depend on other values, and what the model overrides."""
        if self.host.startswith("[") and self.host.endswith("]"):
            self.host = self.host[1:-1]  # `[::1]`, as URLs have it
        self.device = self.device or "cpu"
        self.attention_backend = self.attention_backend or default_attention_backend(self.device)
        self.tokenizer_path = self.tokenizer_path or self.model_path
        self.served_model_name = self.served_model_name or self.model_path
        if self.random_seed is None:
            self.random_seed = random.randrange(1 << 30)
        self._derived_chunk: int | None = None
        apply_speculative_algorithm(self)
        if self.model_path not in PLACEHOLDERS and Path(self.model_path).expanduser().exists():
            _apply_model_overrides(self)
        self._fill_default_chunk()

    def _fill_default_chunk(self) -> None:
        """Whole pages; again when the size of a page has changed. Whoever else set it is obeyed."""
        if self.chunked_prefill_size == self._derived_chunk:
            on_cpu = self.device == "cpu"
            wanted = CPU_CHUNKED_PREFILL_SIZE if on_cpu else DEFAULT_CHUNKED_PREFILL_SIZE
            page_size = max(self.page_size, 1)
            self._derived_chunk = max(wanted // page_size, 1) * page_size
            self.chunked_prefill_size = self._derived_chunk

    def check_server_args(self) -> None:
        """Raises ValueError that names the option; afterwards the options are sealed."""
        for option in options_of(ServerArgs):
            option.check(getattr(self, option.name))
        _check_together(self)
        _check_texts(self)
        object.__setattr__(self, "_sealed", True)

    @property
    def sealed(self) -> bool:
        return "_sealed" in self.__dict__

    def __setattr__(self, name: str, value: object) -> None:
        if self.sealed:
            raise SealedError(f"server options are sealed; {name} cannot be set to {value!r}")
        object.__setattr__(self, name, value)

    def public_values(self) -> dict[str, Any]:
        """Every option that may be shown, by field name."""
        return {
            option.name: getattr(self, option.name)
            for option in options_of(ServerArgs)
            if not option.secret
        }

    def get_model_config(self) -> "ModelConfig":
        """The model's own config. Only for a model that is on disk."""
        from sglang.srt.configs.model_config import ModelConfig

        return ModelConfig.from_path(Path(self.model_path).expanduser(), self.context_length)

    @property
    def preferred_sampling(self) -> dict[str, Any]:
        """`preferred_sampling_params` as an object."""
        return dict(json.loads(self.preferred_sampling_params or "{}"))

    @staticmethod
    def add_cli_args(target: argparse.ArgumentParser) -> None:
        """Adds a flag per option."""
        parser.add_options(target, options_of(ServerArgs))

    @classmethod
    def from_cli_args(cls, namespace: argparse.Namespace) -> "ServerArgs":
        names = [option.name for option in options_of(cls)] + ["front_door", "plugin_options"]
        return cls(**{name: getattr(namespace, name) for name in names if name in namespace})


def _apply_model_overrides(args: ServerArgs) -> None:
    if not overrides.has_overrides():
        return
    from sglang.srt.configs.hf_config import read_hf_config

    hf_config = read_hf_config(Path(args.model_path).expanduser())
    read_only = copy.copy(args)
    object.__setattr__(read_only, "_sealed", True)
    architecture, *_ = getattr(hf_config, "architectures", None) or [""]
    declared = overrides.collect_model_override_declarations(architecture, read_only, hf_config)
    options = {option.name: option for option in options_of(ServerArgs)}
    args.__dict__["_model_overrides"] = overrides.override(args, declared, options)


def _check_together(args: ServerArgs) -> None:
    check_attention_backend(args.attention_backend or "", args.device or "")
    if args.grpc_port is not None and args.grpc_port == args.port:
        raise ValueError(f"--grpc-port must differ from --port, both are {args.port}")
    if args.grpc_port is not None and args.grpc_mode:
        raise ValueError("--grpc-mode serves gRPC on --port; leave --grpc-port out")
    if args.grpc_mode and args.port == 65535:
        raise ValueError("--port must be at most 65534 with --grpc-mode, port + 1 serves health")
    if args.grpc_mode and (args.api_key or args.front_door):
        given = ["--api-key"] if args.api_key else []
        given += ["--" + name.replace("_", "-") for name in args.front_door]
        raise ValueError(f"{', '.join(given)}: the HTTP server is off with --grpc-mode")
    chunk = args.chunked_prefill_size or 0
    if chunk == 0:
        raise ValueError("--chunked-prefill-size must be -1 (off) or at least 1, got 0")
    if chunk > 0 and chunk % args.page_size:
        raise ValueError(
            f"--chunked-prefill-size must be a multiple of --page-size = {args.page_size}, "
            f"got {chunk}"
        )
    if args.max_total_tokens is not None and args.max_total_tokens < args.page_size:
        raise ValueError(
            f"--max-total-tokens must be at least one page, --page-size = {args.page_size}, "
            f"got {args.max_total_tokens}"
        )
    if args.disable_radix_cache and args.radix_cache_backend is not None:
        raise ValueError("--radix-cache-backend and --disable-radix-cache exclude each other")


def _check_texts(args: ServerArgs) -> None:
    for name in ("model_path", "host"):
        if not getattr(args, name):
            raise ValueError(f"--{name.replace('_', '-')} must not be empty")
    try:
        preferred = json.loads(args.preferred_sampling_params or "{}")
    except json.JSONDecodeError as error:
        raise ValueError(f"--preferred-sampling-params is not JSON: {error}") from None
    if not isinstance(preferred, dict):
        raise ValueError(f"--preferred-sampling-params must be a JSON object, got {preferred!r}")


@dataclass(frozen=True)
class PortArgs:
    """ZMQ endpoints inside one worker. The launcher binds them, the scheduler connects."""

    scheduler_input_ipc_name: str  # launcher PUSH → scheduler PULL
    scheduler_output_ipc_name: str  # scheduler PUSH → launcher PULL

    @classmethod
    def in_folder(cls, folder: str) -> "PortArgs":
        """Endpoints in a private folder; its path must stay well below 100 characters."""
        return cls(f"ipc://{folder}/in", f"ipc://{folder}/out")


def prepare_server_args(
    argv: Sequence[str],
    *,
    prog: str = "python -m sglang.launch_server",
    extra: Callable[[], Sequence[Option]] = tuple,
) -> ServerArgs:
    """Options from flags, then variables, then the `--config` file; checked and sealed.

    `extra` gives the HTTP server's options, which are declared elsewhere; what the user sets of
    them lands in `front_door`. A mistake ends the process with code 2 and one sentence.
    """
    return resolve_server_args(argv, prog=prog, extra=extra)[0]


def resolve_server_args(
    argv: Sequence[str],
    *,
    prog: str,
    extra: Callable[[], Sequence[Option]] = tuple,
    needs_model: bool = True,
) -> tuple[ServerArgs, dict[str, str]]:
    """Like `prepare_server_args`, with the origin of every value that is not a default."""
    own = options_of(ServerArgs)
    own_names = {option.name for option in own}
    others = [option for option in extra() if option.name not in own_names]
    flags = parser.make_parser(prog)
    ServerArgs.add_cli_args(flags)
    parser.add_options(flags, others)
    settings = parser.collect(flags, argv, [*own, *others])
    values = {name: value for name, value in settings.values.items() if name in own_names}
    front_door = {name: value for name, value in settings.values.items() if name not in own_names}
    if values.get("grpc_mode"):
        # A whole fleet may share variables that are meant for its gateway.
        for name in [n for n, origin in settings.origins.items() if origin.startswith("variable")]:
            front_door.pop(name, None)
            if name == "api_key":
                del values[name]
    if not needs_model:
        values.setdefault("model_path", NO_MODEL)
    if "model_path" not in values:
        flags.error("--model-path is required: a folder, a GGUF file, a hub id, or `demo`")
    try:
        args = ServerArgs.from_cli_args(
            argparse.Namespace(**values, front_door=front_door, plugin_options=settings.extra)
        )
        args.check_server_args()
    except ValueError as error:
        flags.error(str(error))
    return args, settings.origins


def with_model_path(args: ServerArgs, path: str) -> ServerArgs:
    """The same options for a model that has been found on disk, checked and sealed again.

    What the model overrides is written here if nobody could know the model before.
    """
    found = copy.copy(args)
    found.__dict__.pop("_sealed", None)
    if args.tokenizer_path == args.model_path:
        found.tokenizer_path = path
    found.model_path = path
    if "_model_overrides" not in found.__dict__:
        _apply_model_overrides(found)
        found._fill_default_chunk()
    for sentence in found.__dict__.get("_model_overrides", ()):
        logger.info(sentence)  # only now: options are built before logging is set up
    found.check_server_args()
    return found
