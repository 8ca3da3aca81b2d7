"""What the worker tells about its work: metrics, traces, lines in the log."""

import json
import re
from dataclasses import dataclass
from typing import Annotated as A

from sglang.srt.arg_groups.declaration import Bound, Choices, Group, Needs
from sglang.srt.observability.buckets import seconds_buckets, token_buckets

GROUP = Group("metrics, traces, log")
LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
OWN_LABELS = frozenset(
    ("model_name", "engine_type", "tp_rank", "pp_rank", "dp_rank", "cache_source", "mode", "stage")
)
ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):(\d{1,5})")
TIME_BUCKETS = (
    "bucket_time_to_first_token",
    "bucket_inter_token_latency",
    "bucket_e2e_request_latency",
)
TOKEN_BUCKETS = ("prompt_tokens_buckets", "generation_tokens_buckets")


@dataclass
class ObservingArgs:
    """Metrics, traces, log."""

    enable_metrics: A[bool, GROUP, "Add latencies of single requests to the metrics."] = False
    extra_metric_labels: A[
        str | None, GROUP, 'JSON object of labels for every series: {"region": "north"}.'
    ] = None
    bucket_time_to_first_token: A[
        list[str] | None,
        GROUP,
        Needs("enable_metrics"),
        "Buckets of the time to the first token, in seconds.",
    ] = None
    bucket_inter_token_latency: A[
        list[str] | None,
        GROUP,
        Needs("enable_metrics"),
        "Buckets of the time between two tokens, in seconds.",
    ] = None
    bucket_e2e_request_latency: A[
        list[str] | None,
        GROUP,
        Needs("enable_metrics"),
        "Buckets of the time of whole requests, in seconds.",
    ] = None
    prompt_tokens_buckets: A[
        list[str] | None,
        GROUP,
        Needs("enable_metrics"),
        "Buckets of prompts' lengths: `default`, `tse MIDDLE BASE COUNT` (close around MIDDLE) or "
        "`custom BOUND …`.",
    ] = None
    generation_tokens_buckets: A[
        list[str] | None,
        GROUP,
        Needs("enable_metrics"),
        "Buckets of answers' lengths, by the same rules.",
    ] = None
    decode_log_interval: A[
        int, GROUP, Bound(ge=0), "Decode steps between two lines in the log; 0 logs none."
    ] = 40
    log_requests: A[bool, GROUP, "Log a line for each answer that ends."] = False
    log_requests_level: A[
        int,
        GROUP,
        Needs("log_requests"),
        Bound(ge=0, le=3),
        "What the line holds: 0 counts and times, 1 also sampling parameters, 2 also the first "
        "token ids, 3 all token ids.",
    ] = 2
    log_requests_format: A[
        str, GROUP, Needs("log_requests"), Choices.of("text", "json"), "How the line is written."
    ] = "text"
    enable_trace: A[bool, GROUP, "Send spans of every request to an OpenTelemetry collector."] = (
        False
    )
    otlp_traces_endpoint: A[
        str,
        GROUP,
        Needs("enable_trace"),
        "Collector that takes OTLP over gRPC without TLS, as HOST:PORT.",
    ] = "localhost:4317"

    @property
    def metric_labels(self) -> dict[str, str]:
        """`extra_metric_labels` as an object."""
        return dict(json.loads(self.extra_metric_labels or "{}"))

    @property
    def histogram_buckets(self) -> dict[str, tuple[float, ...]] | None:
        """Upper bounds by series; None without histograms."""
        if not self.enable_metrics:
            return None
        times = {
            name.removeprefix("bucket_") + "_seconds": seconds_buckets(getattr(self, name), "")
            for name in TIME_BUCKETS
        }
        tokens = {
            name.removesuffix("_buckets") + "_histogram": token_buckets(getattr(self, name), "")
            for name in TOKEN_BUCKETS
        }
        return times | tokens


def check_observing(args: ObservingArgs) -> None:
    """ValueError that names the option."""
    _check_labels(args.extra_metric_labels)
    for name in TIME_BUCKETS:
        seconds_buckets(getattr(args, name), _flag(name))
    for name in TOKEN_BUCKETS:
        token_buckets(getattr(args, name), _flag(name))
    found = ADDRESS.fullmatch(args.otlp_traces_endpoint)
    if found is None or not 1 <= int(found[2]) <= 65535:
        raise ValueError(
            "--otlp-traces-endpoint must be HOST:PORT, like localhost:4317; got "
            f"{args.otlp_traces_endpoint!r}"
        )


def _check_labels(text: str | None) -> None:
    flag = "--extra-metric-labels"
    if text is None:
        return
    try:
        labels = json.loads(text)
    except ValueError:
        labels = None
    if not isinstance(labels, dict) or not all(isinstance(v, str) for v in labels.values()):
        raise ValueError(
            f'{flag} must be a JSON object of texts, like {{"region": "north"}}; got {text!r}'
        )
    for name in labels:
        if not LABEL_NAME.fullmatch(name) or name.startswith("__") or name == "le":
            raise ValueError(
                f"{flag}: {name!r} cannot name a label; use letters, digits and _, and neither "
                "`le` nor two leading _"
            )
        if name in OWN_LABELS:
            raise ValueError(f"{flag}: the engine sets {name!r} itself; choose another name")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
