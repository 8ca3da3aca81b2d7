"""The options of benchmarks, declared once; the parsers follow from here."""

import argparse
import json
import types
from collections.abc import Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, get_args, get_type_hints

from sglang.benchmark.backends import BACKENDS
from sglang.benchmark.refusals import chosen_from, unknown_argument

DATASETS = (
    "sharegpt", "custom", "openai", "random", "random-ids", "generated-shared-prefix", "mooncake",
)  # fmt: skip
GOALS = ("ttft", "tpot", "e2el")
DISTRIBUTIONS = ("uniform", "distinct", "skewed")


def option(default: Any, help: str, choices: Sequence[str] = ()) -> Any:
    metadata = {"help": help, "choices": choices}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class DatasetOptions:
    """What is asked, and how; `None` means: not given."""

    dataset_name: str = option("sharegpt", "What is asked.", DATASETS)
    dataset_path: str = option("", "File of the data set; may be gzipped.")
    num_prompts: int = option(1000, "Number of requests.")
    seed: int = option(42, "Of everything that is drawn: prompts, lengths, times.")
    sharegpt_output_len: int | None = option(None, "Tokens to answer; default: as in the file.")
    sharegpt_context_len: int | None = option(None, "Leave out what is longer than this.")
    random_input_len: int = option(1024, "Most prompt tokens of random and random-ids.")
    random_output_len: int = option(1024, "Most answer tokens of random and random-ids.")
    random_range_ratio: float = option(0.0, "Least length as a share of the most, 0 to 1.")
    gsp_num_groups: int = option(64, "Groups that share a system prompt.")
    gsp_prompts_per_group: int = option(16, "Requests of each group.")
    gsp_system_prompt_len: int = option(2048, "Tokens of a system prompt.")
    gsp_question_len: int = option(128, "Tokens behind the system prompt.")
    gsp_output_len: int = option(256, "Tokens to answer.")
    prompt_suffix: str = option("", "Text behind every prompt.")
    apply_chat_template: bool = option(False, "Render prompts as the model's chat first.")
    disable_ignore_eos: bool = option(False, "Let answers end where the model ends them.")
    return_logprob: bool = option(False, "Ask for logprobs.")
    extra_request_body: str = option("", "JSON object that is merged into every request.")

    @property
    def extra_body(self) -> dict[str, Any]:
        return dict(json.loads(self.extra_request_body or "{}"))


@dataclass(frozen=True)
class Options(DatasetOptions):
    """Those of the benchmark of a running server."""

    backend: str = option("sglang", "API to speak; sglang is the native /generate.", list(BACKENDS))
    base_url: str | None = option(None, "Address of the server; default: http://HOST:PORT.")
    host: str = option("0.0.0.0", "Host of the server.")
    port: int | None = option(
        None, "Port; default: 30000 for sglang, 8000 for vllm, 23333 for lmdeploy."
    )
    model: str | None = option(None, "Model to ask for; default: the server's first.")
    served_model_name: str | None = option(None, "Name in requests, if it is not --model.")
    tokenizer: str | None = option(
        None, "Folder with tokenizer.json; default: the server tokenizes."
    )
    header: list[str] = option([], "KEY=VALUE to send with every request.")
    ready_check_timeout_sec: float = option(
        60.0, "Seconds to wait for the server to be ready; 0: asked once."
    )

    gsp_num_turns: int = option(1, "Questions of each conversation, each after the answers so far.")
    gsp_ordered: bool = option(False, "Group by group instead of shuffled.")
    mooncake_slowdown_factor: float = option(1.0, "Stretches the times of the trace.")
    mooncake_num_rounds: int = option(
        1, "Times that each prompt of the trace is asked, each after the answers so far."
    )
    tokenize_prompt: bool = option(False, "Send token ids instead of text.")
    lora_name: list[str] = option([], "Adapters to ask for; default: the model alone.")
    lora_request_distribution: str | None = option(
        None,
        "uniform: any, at random; distinct: one after the other; skewed: the earlier in the list "
        "the more. Default: uniform.",
        DISTRIBUTIONS,
    )

    request_rate: float = option(float("inf"), "Requests per second, at random times (Poisson).")
    max_concurrency: int | None = option(None, "Most requests at a time.")
    warmup_requests: int = option(1, "Requests before the measurement.")
    flush_cache: bool = option(False, "Empty the server's prefix cache before the measurement.")

    disable_stream: bool = option(False, "Ask for whole answers; then there are no token times.")
    temperature: float = option(0.0, "Sampling temperature.")
    top_p: float = option(1.0, "Share of the probability that is sampled from.")

    goodput: list[str] = option([], "GOAL:MS, counted if all hold: " + ", ".join(GOALS) + ".")
    cache_report: bool = option(False, "Report how much of the prompts came from the cache.")
    output_file: str | None = option(None, "File that the result is appended to, a JSON line.")
    output_details: bool = option(False, "Add every request's lengths, times and text to it.")
    tag: str | None = option(None, "Label in the JSON line.")
    disable_tqdm: bool = option(False, "Show no progress.")

    @property
    def url(self) -> str:
        port = self.port or BACKENDS[self.backend].port
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (self.base_url or f"http://{host}:{port}").rstrip("/")

    @property
    def headers(self) -> dict[str, str]:
        pairs = (text.partition("=") for text in self.header)
        return {name.strip(): value for name, _, value in pairs}

    @property
    def goals(self) -> dict[str, float]:
        """Milliseconds by goal."""
        pairs = (text.partition(":") for text in self.goodput)
        return {name: float(value) for name, _, value in pairs}

    @property
    def num_turns(self) -> int:
        """Requests of each conversation."""
        by_name = {
            "generated-shared-prefix": self.gsp_num_turns,
            "mooncake": self.mooncake_num_rounds,
        }
        return by_name.get(self.dataset_name, 1)

    def check(self) -> None:
        """Raises ValueError that names the option."""
        _check_numbers(self)
        _check_texts(self)
        _check_turns(self)
        _check_adapters(self)
        backend = BACKENDS[self.backend]
        if self.flush_cache and not backend.is_sglang:
            raise ValueError(f"--flush-cache: {self.backend} servers cannot; leave it out")
        if self.dataset_name == "openai" and not backend.is_chat and not self.apply_chat_template:
            raise ValueError(
                f"--dataset-name openai holds chats; use a chat backend instead of {self.backend}, "
                "or --apply-chat-template"
            )
        if backend.is_chat and (self.apply_chat_template or self.tokenize_prompt):
            raise ValueError(
                f"--apply-chat-template and --tokenize-prompt: {self.backend} takes text and "
                "renders chats itself; leave them out"
            )
        if self.dataset_name == "mooncake" and self.request_rate != float("inf"):
            raise ValueError(
                "--request-rate: a mooncake trace has its own times; use --mooncake-slowdown-factor"
            )
        made_up = ("random-ids", "generated-shared-prefix")
        if not self.dataset_path and self.dataset_name not in made_up:
            raise ValueError(
                f"--dataset-path is required for --dataset-name {self.dataset_name}; "
                f"{' and '.join(made_up)} need no file"
            )


def parse(argv: Sequence[str], prog: str) -> Options:
    """A mistake ends the process with code 2 and one sentence."""
    parser = make_parser(Options, prog, "Measures a running server.")
    try:
        given, rest = parser.parse_known_args(argv)
        if rest:
            raise ValueError(unknown_argument(rest[0], flags_of(Options)))
        options = Options(**vars(given))
        options.check()
    except ValueError as error:
        parser.error(str(error))
    return options


def make_parser(declared: type[Any], prog: str, description: str) -> argparse.ArgumentParser:
    """A flag for each field of a class whose fields are made by `option`."""
    parser = argparse.ArgumentParser(prog=prog, allow_abbrev=False, description=description)
    hints = get_type_hints(declared)
    for one in fields(declared):
        parser.add_argument(_flag(one), **_argument(one, hints[one.name]))
    return parser


def flags_of(declared: type[Any]) -> list[str]:
    return [_flag(one) for one in fields(declared)]


def _flag(declared: Field[Any]) -> str:
    return "--" + declared.name.replace("_", "-")


def _argument(declared: Field[Any], hint: Any) -> dict[str, Any]:
    default = declared.default
    if declared.default_factory is not MISSING:
        default = declared.default_factory()
    help = declared.metadata["help"].replace("%", "%%")
    if hint is bool:
        return {"action": "store_true", "help": help}
    if isinstance(hint, types.UnionType):
        hint = next(part for part in get_args(hint) if part is not type(None))
    told = " ".join(map(str, default)) if isinstance(default, list) else default
    shown = "" if told in (None, "") else f" Default: {told}."
    kept: dict[str, Any] = {"default": default, "help": help + shown}
    if choices := declared.metadata["choices"]:
        return {**kept, "choices": list(choices), "type": chosen_from(choices)}
    if isinstance(default, list):
        (kind,) = get_args(hint)
        metavar = "TEXT" if kind is str else kind.__name__.upper()
        return {**kept, "nargs": "+", "type": kind, "metavar": metavar}
    return {**kept, "type": hint, "metavar": hint.__name__.upper()}


def _check_numbers(options: Options) -> None:
    least_one = (
        "num_prompts", "sharegpt_output_len", "sharegpt_context_len", "random_input_len",
        "random_output_len", "gsp_num_groups", "gsp_prompts_per_group", "gsp_system_prompt_len",
        "gsp_question_len", "gsp_output_len", "gsp_num_turns", "mooncake_num_rounds",
        "max_concurrency",
    )  # fmt: skip
    for name in least_one:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    for name in ("warmup_requests", "ready_check_timeout_sec", "temperature"):
        if getattr(options, name) < 0:
            raise ValueError(f"--{name.replace('_', '-')} must not be negative")
    if options.port is not None and not 1 <= options.port <= 65535:
        raise ValueError(f"--port must be 1 to 65535, got {options.port}")
    if not 0 <= options.random_range_ratio <= 1:
        raise ValueError(f"--random-range-ratio must be 0 to 1, got {options.random_range_ratio}")
    for name in ("request_rate", "mooncake_slowdown_factor"):
        if not getattr(options, name) > 0:
            raise ValueError(f"--{name.replace('_', '-')} must be above 0")


def _check_texts(options: Options) -> None:
    for text in options.header:
        if "=" not in text:
            raise ValueError(f"--header must be KEY=VALUE, got {text!r}")
    for text in options.goodput:
        name, _, value = text.partition(":")
        if name not in GOALS or not value.replace(".", "", 1).isdigit():
            raise ValueError(
                f"--goodput must be GOAL:MS with a goal of {', '.join(GOALS)}, got {text!r}"
            )
    try:
        extra = json.loads(options.extra_request_body or "{}")
    except json.JSONDecodeError as error:
        raise ValueError(f"--extra-request-body is not JSON: {error}") from None
    if not isinstance(extra, dict):
        raise ValueError(f"--extra-request-body must be a JSON object, got {extra!r}")


def _check_turns(options: Options) -> None:
    if options.num_turns == 1:
        return
    flag = "--gsp-num-turns" if options.dataset_name != "mooncake" else "--mooncake-num-rounds"
    if BACKENDS[options.backend].is_embedding:
        raise ValueError(f"{flag} must be 1: {options.backend} gives no answers to go on from")
    if options.apply_chat_template or options.tokenize_prompt:
        raise ValueError(
            f"{flag} must be 1 with --apply-chat-template and --tokenize-prompt, for answers come "
            "back as text; leave them out, or use a chat backend"
        )


def _check_adapters(options: Options) -> None:
    if options.lora_request_distribution and not options.lora_name:
        raise ValueError("--lora-request-distribution needs adapters; name them by --lora-name")
    if not all(options.lora_name):
        raise ValueError("--lora-name must not be empty; leave it out to ask the model alone")
    if options.lora_name and options.backend == "sglang-embedding":
        raise ValueError("--lora-name: sglang embeds without adapters; leave it out")
