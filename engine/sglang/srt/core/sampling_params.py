"""How one request wants its tokens chosen, and when it wants to stop."""

import math
from typing import Any

import msgspec

TOP_K_ALL = 1 << 30
# Dividing float32 logits by less lets their rounding decide: greedy is what is meant.
GREEDY_TEMPERATURE = 1e-5
MAX_STOP_STRINGS = 32
MAX_STOP_REGEX_LEN = 256  # bytes
INT64 = range(-(1 << 63), 1 << 63)
CONSTRAINTS = ("json_schema", "regex", "ebnf", "structural_tag")


class SamplingParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The knobs of `/generate`'s `sampling_params`, with their documented defaults.

    Values are checked by `check`, and made canonical by `normalized`; the scheduler sees only
    canonical ones.
    """

    max_new_tokens: int | None = 128
    min_new_tokens: int = 0
    stop: list[str] = []
    stop_token_ids: list[int] = []
    stop_regex: list[str] = []
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    n: int = 1
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    logit_bias: dict[int, float] = {}
    sampling_seed: int | None = None
    stream_interval: int | None = None
    custom_params: dict[str, Any] | None = None

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken; also of parameters that are not canonical."""
        return self.top_k == 1 or self.temperature < GREEDY_TEMPERATURE

    @property
    def constraints(self) -> list[str]:
        """The names of the constraints that are set; at most one may be."""
        return [name for name in CONSTRAINTS if getattr(self, name)]

    def check(self, vocab_size: int) -> None:
        """Raises ValueError that names the field, what was given and what is allowed."""
        _check_ranges(self)
        _check_lengths(self)
        _check_ids(self, vocab_size)
        if len(self.constraints) > 1:
            given = " and ".join(self.constraints)
            raise ValueError(f"at most one constraint may be set, got {given}")

    def normalized(self) -> "SamplingParams":
        """The canonical form: greedy is temperature 1 with top_k 1, no top_k is `TOP_K_ALL`."""
        if self.temperature < GREEDY_TEMPERATURE:
            return msgspec.structs.replace(self, temperature=1.0, top_k=1)
        if self.top_k == -1:
            return msgspec.structs.replace(self, top_k=TOP_K_ALL)
        return self


def _require(ok: bool, field: str, given: object, allowed: str) -> None:
    if not ok:
        raise ValueError(f"{field} must be {allowed}, got {given}")


def _check_ranges(p: SamplingParams) -> None:
    finite = math.isfinite
    _require(finite(p.temperature) and p.temperature >= 0, "temperature", p.temperature, ">= 0")
    _require(0 < p.top_p <= 1, "top_p", p.top_p, "in (0, 1]")
    _require(p.top_k == -1 or p.top_k >= 1, "top_k", p.top_k, "-1 (off) or at least 1")
    _require(0 <= p.min_p <= 1, "min_p", p.min_p, "in [0, 1]")
    for field in ("frequency_penalty", "presence_penalty"):
        value = getattr(p, field)
        _require(-2 <= value <= 2, field, value, "in [-2, 2]")
    _require(0 < p.repetition_penalty <= 2, "repetition_penalty", p.repetition_penalty, "in (0, 2]")
    _require(p.n >= 1, "n", p.n, "at least 1")
    seed, interval = p.sampling_seed, p.stream_interval
    _require(seed is None or seed in INT64, "sampling_seed", seed, "an integer of 64 bits")
    _require(interval is None or interval >= 1, "stream_interval", interval, "at least 1")


def _check_lengths(p: SamplingParams) -> None:
    if p.max_new_tokens is not None:
        _require(p.max_new_tokens >= 0, "max_new_tokens", p.max_new_tokens, ">= 0")
        _require(
            0 <= p.min_new_tokens <= p.max_new_tokens,
            "min_new_tokens",
            p.min_new_tokens,
            f"in [0, max_new_tokens = {p.max_new_tokens}]",
        )
    _require(p.min_new_tokens >= 0, "min_new_tokens", p.min_new_tokens, ">= 0")
    for field in ("stop", "stop_regex"):
        count = len(getattr(p, field))
        _require(count <= MAX_STOP_STRINGS, field, f"{count} strings", f"<= {MAX_STOP_STRINGS}")
        _require(all(getattr(p, field)), field, "an empty one", "strings that are not empty")
    longest = max((len(pattern.encode()) for pattern in p.stop_regex), default=0)
    allowed = f"patterns of at most {MAX_STOP_REGEX_LEN} bytes"
    _require(longest <= MAX_STOP_REGEX_LEN, "stop_regex", f"{longest} bytes", allowed)


def _check_ids(p: SamplingParams, vocab_size: int) -> None:
    allowed = f"ids of the vocabulary, 0 … {vocab_size - 1}"
    for token_id in p.stop_token_ids:
        _require(0 <= token_id < vocab_size, "stop_token_ids", token_id, allowed)
    for token_id, bias in p.logit_bias.items():
        _require(0 <= token_id < vocab_size, "logit_bias", token_id, allowed)
        _require(math.isfinite(bias), "logit_bias", bias, "finite numbers")
