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

from sglang.srt.arg_groups import overrides, parser
from sglang.srt.arg_groups.answers import AnswerArgs, check_answers
from sglang.srt.arg_groups.attention import (
    ATTENTION_BACKEND_CHOICES as ATTENTION_BACKEND_CHOICES,
)
from sglang.srt.arg_groups.attention import (
    add_attention_backend_choices as add_attention_backend_choices,
)
from sglang.srt.arg_groups.attention import check_attention, default_attention_backend
from sglang.srt.arg_groups.declaration import Option, options_of, without_switch
from sglang.srt.arg_groups.events import EventArgs, check_events
from sglang.srt.arg_groups.grammars import (
    GRAMMAR_BACKEND_CHOICES as GRAMMAR_BACKEND_CHOICES,
)
from sglang.srt.arg_groups.grammars import GrammarArgs, check_grammars
from sglang.srt.arg_groups.grammars import (
    add_grammar_backend_choices as add_grammar_backend_choices,
)
from sglang.srt.arg_groups.hicache import HiCacheArgs, check_hicache
from sglang.srt.arg_groups.kernels import KernelArgs
from sglang.srt.arg_groups.lora import LoRAArgs, check_lora, fill_lora
from sglang.srt.arg_groups.memory import MemoryArgs, check_memory
from sglang.srt.arg_groups.model import ModelArgs, check_model
from sglang.srt.arg_groups.observing import ObservingArgs, check_observing
from sglang.srt.arg_groups.process import ProcessArgs
from sglang.srt.arg_groups.sampling import (
    DETERMINISTIC_ATTENTION_BACKEND_CHOICES as DETERMINISTIC_ATTENTION_BACKEND_CHOICES,
)
from sglang.srt.arg_groups.sampling import (
    INVARIANT_ATTENTION,
    SamplingArgs,
    check_sampling,
)
from sglang.srt.arg_groups.sampling import (
    SAMPLING_BACKEND_CHOICES as SAMPLING_BACKEND_CHOICES,
)
from sglang.srt.arg_groups.sampling import (
    add_deterministic_attention_backend_choices as add_deterministic_attention_backend_choices,
)
from sglang.srt.arg_groups.scheduling import SchedulingArgs, check_scheduling, fill_scheduling
from sglang.srt.arg_groups.serving import ServingArgs, check_serving
from sglang.srt.arg_groups.speculative import SpeculativeArgs, apply_speculative_algorithm

if TYPE_CHECKING:
    from sglang.srt.configs.model_config import ModelConfig

logger = logging.getLogger(__name__)

DEFAULT_CHUNKED_PREFILL_SIZE = 4096
# A step of so many tokens of a small model takes about a second on two cores, and others wait.
CPU_CHUNKED_PREFILL_SIZE = 512
URGENT_ROOM = 64  # requests on their way to a full queue
NO_MODEL = "none"
PLACEHOLDERS = (NO_MODEL, "dummy")  # model paths that name no model


class SealedError(AttributeError):
    """Somebody wrote to options after they were checked."""


@dataclass
class ServerArgs(
    ProcessArgs,
    ObservingArgs,
    SpeculativeArgs,
    KernelArgs,
    SamplingArgs,
    SchedulingArgs,
    LoRAArgs,
    HiCacheArgs,
    MemoryArgs,
    EventArgs,
    GrammarArgs,
    AnswerArgs,
    ServingArgs,
    ModelArgs,
):
    """Options after parsing. `check_server_args` seals them; from then on nobody writes."""

    front_door: dict[str, Any] = field(default_factory=dict)  # the HTTP server's own options
    plugin_options: dict[str, Any] = field(default_factory=dict)  # flags that hooks have added

    def __post_init__(self) -> None:
        """Fills the defaults that depend on other values, and what the model overrides.

        ValueError names an option of a wrong type, before anything is computed with it.
        """
        fill_lora(self)
        for option in options_of(ServerArgs):
            option.check_type(getattr(self, option.name))
        if self.host.startswith("[") and self.host.endswith("]"):
            self.host = self.host[1:-1]  # `[::1]`, as URLs have it
        self.device = self.device or "cpu"
        if self.enable_deterministic_inference:
            self.attention_backend = self.attention_backend or INVARIANT_ATTENTION
        self.attention_backend = self.attention_backend or default_attention_backend(self.device)
        self.tokenizer_path = self.tokenizer_path or self.model_path
        self.served_model_name = self.served_model_name or self.model_path
        if self.random_seed is None:
            self.random_seed = random.randrange(1 << 30)
        self._derived_chunk: int | None = None
        fill_scheduling(self)
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
        if not self.model_path:
            raise ValueError("--model-path must not be empty")
        check_model(self, self.speculative_algorithm)
        check_serving(self, self.front_door)
        check_answers(self)
        check_grammars(self)
        check_observing(self)
        check_memory(self)
        check_hicache(self, self)
        check_events(self, disable_radix_cache=self.disable_radix_cache)
        check_scheduling(self, self.page_size)
        check_lora(self, self.served_model_name or "", self.speculative_algorithm)
        check_attention(self, self.device or "")
        check_sampling(
            self,
            self.device or "",
            [
                self.attention_backend,
                self.prefill_attention_backend,
                self.decode_attention_backend,
            ],
        )
        object.__setattr__(self, "_sealed", True)

    @property
    def most_waiting(self) -> int | None:
        """Answers that the launcher lets wait; None: no limit.

        The scheduler keeps to `max_queued_requests`. With priorities it has to see more, so that
        an urgent request can take the place of another one.
        """
        limit = self.max_queued_requests
        if limit is None or not self.enable_priority_scheduling:
            return limit
        return 2 * limit + URGENT_ROOM

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
    # Only now: options are built before logging is set up.
    for sentence in found.__dict__.get("_model_overrides", ()):
        logger.info(sentence)
    for sentence in without_switch(found, options_of(ServerArgs)):
        logger.warning(sentence)
    found.check_server_args()
    return found
