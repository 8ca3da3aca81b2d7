"""Processors that requests name or upload to change their logits."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import torch

from sglang.extension.registry import source_of
from sglang.srt.core.messages import described
from sglang.srt.extension_points import LOGIT_PROCESSORS

__all__ = [
    "CustomLogitProcessor",
    "DisallowedTokensLogitsProcessor",
    "ThinkingBudgetLogitProcessor",
    "find_processor",
    "register_logit_processor",
]

FLAG = "--enable-custom-logit-processor"
_CALLABLE = "callable"  # the key of an uploaded class
_NUM_KEPT = 128  # uploaded texts; each one keeps its processor
_SHOWN = 40  # characters of an uploaded text in a message

Factory = TypeVar("Factory", bound=Callable[[], Any])


class CustomLogitProcessor(ABC):
    """Changes the logits of the requests that name it, once per step.

    One object serves all requests with the same text, so what belongs to a request is kept in its
    params: the same dictionary is passed in every step.
    """

    @abstractmethod
    def __call__(
        self, logits: torch.Tensor, custom_param_list: list[dict[str, Any]] | None = None
    ) -> torch.Tensor:
        """The new logits, shaped like the old ones, which may be overwritten.

        Row i belongs to `custom_param_list[i]`: the request's `custom_params`, and the request
        itself as `__req__`. Called when all earlier tokens stand in `__req__.output_ids`. A row
        must keep a finite logit and have neither NaN nor +inf; otherwise its request ends.
        """
        # logits: [num_requests, vocab] float32 -> like logits

    @classmethod
    def to_str(cls) -> str:
        """What a request gives as `custom_logit_processor`: a name, or else the class itself."""
        if name := _name_of(cls):
            return name
        import dill

        # `recurse`: what it uses of its script comes along, imported modules and constants too
        return json.dumps({_CALLABLE: dill.dumps(cls, recurse=True).hex()})

    @classmethod
    def from_str(cls, text: str) -> "CustomLogitProcessor":
        """The processor that `to_str` described. NOTE: an uploaded class runs code right here."""
        return find_processor(text, allows_uploaded=True)


class DisallowedTokensLogitsProcessor(CustomLogitProcessor):
    """Forbids the tokens of `custom_params.token_ids`."""

    def __call__(
        self, logits: torch.Tensor, custom_param_list: list[dict[str, Any]] | None = None
    ) -> torch.Tensor:
        for row, params in enumerate(custom_param_list or []):
            ids = _token_ids(params.get("token_ids"), "token_ids", logits.shape[1])
            logits[row, ids] = -torch.inf
        return logits


class ThinkingBudgetLogitProcessor(CustomLogitProcessor):
    """Ends the thinking of a reasoning model after `custom_params.thinking_budget` tokens.

    `think_end_token_id` is the token that ends it. With `think_start_token_id` the thinking starts
    behind the last such token of prompt and answer; without, it starts with the answer.
    """

    def __call__(
        self, logits: torch.Tensor, custom_param_list: list[dict[str, Any]] | None = None
    ) -> torch.Tensor:
        for row, params in enumerate(custom_param_list or []):
            budget = params.get("thinking_budget")
            if not isinstance(budget, int | float) or budget < 0:
                raise ValueError(f"custom_params.thinking_budget must be >= 0, got {budget!r}")
            thought = _thought_of(params, logits.shape[1])
            if thought is None or len(thought) < budget:
                continue
            logits[row] = -torch.inf
            logits[row, int(params["think_end_token_id"])] = 0.0
        return logits


def register_logit_processor(name: str) -> Callable[[Factory], Factory]:
    """Decorator of a processor class, or of a factory() that makes a processor.

    Requests may use a registered name on any server. A taken name raises.
    """

    def decorator(factory: Factory) -> Factory:
        LOGIT_PROCESSORS.register(name, factory, source=source_of(factory))
        return factory

    return decorator


def find_processor(text: str, *, allows_uploaded: bool) -> CustomLogitProcessor:
    """The processor of a name or of an uploaded class. ValueError says why there is none.

    Equal texts get the same object. Nothing of an uploaded class is read unless it is allowed.
    """
    if text in LOGIT_PROCESSORS:
        return _registered(text)
    if not allows_uploaded:
        known = ", ".join(LOGIT_PROCESSORS.names())
        raise ValueError(
            f"custom_logit_processor must be the name of a registered one ({known}), got "
            f"{_clipped(text)!r}. Uploaded classes are executed only by an engine that was started "
            f"with {FLAG}"
        )
    return _uploaded(text)


def is_registered(text: str) -> bool:
    return text in LOGIT_PROCESSORS


@lru_cache(maxsize=_NUM_KEPT)
def _registered(name: str) -> CustomLogitProcessor:
    return _made_by(LOGIT_PROCESSORS[name], f"the processor {name!r}")


@lru_cache(maxsize=_NUM_KEPT)
def _uploaded(text: str) -> CustomLogitProcessor:
    import dill

    try:
        factory = dill.loads(bytes.fromhex(json.loads(text)[_CALLABLE]))
    except BaseException as error:
        raise ValueError(
            f"custom_logit_processor {_clipped(text)!r} is neither a registered name nor a class "
            f"written by CustomLogitProcessor.to_str(): {described(error)}"
        ) from error
    return _made_by(factory, "the uploaded custom_logit_processor")


def _made_by(factory: Callable[[], Any], what: str) -> CustomLogitProcessor:
    try:
        processor = factory()
    except BaseException as error:
        raise ValueError(f"{what} cannot be made: {described(error)}") from error
    if not callable(processor):
        raise ValueError(f"{what} must be callable, got a {type(processor).__name__}")
    made: CustomLogitProcessor = processor
    return made


def _name_of(cls: type) -> str | None:
    """The name under which this very class is registered."""
    source = source_of(cls)
    names = (name for name in LOGIT_PROCESSORS if LOGIT_PROCESSORS.source(name) == source)
    return next((name for name in names if LOGIT_PROCESSORS[name] is cls), None)


def _clipped(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _thought_of(params: dict[str, Any], vocab_size: int) -> list[int] | None:
    """The tokens of the thinking that goes on; None when there is none."""
    (end,) = _token_ids([params.get("think_end_token_id")], "think_end_token_id", vocab_size)
    req = params["__req__"]
    thought: list[int] = req.output_ids
    if (start := params.get("think_start_token_id")) is not None:
        (start,) = _token_ids([start], "think_start_token_id", vocab_size)
        tokens = req.origin_input_ids + req.output_ids
        if start not in tokens:
            return None
        thought = tokens[len(tokens) - tokens[::-1].index(start) :]
    return None if end in thought else thought


def _token_ids(given: Any, field: str, vocab_size: int) -> list[int]:
    """Numbers of a request's JSON are floats on the wire."""
    ids = given if isinstance(given, list) else [given]
    for token_id in ids:
        is_id = isinstance(token_id, int | float) and float(token_id).is_integer()
        if not is_id or not 0 <= token_id < vocab_size:
            raise ValueError(
                f"custom_params.{field} must be ids of the vocabulary, 0 … {vocab_size - 1}; "
                f"got {given!r}"
            )
    return [int(token_id) for token_id in ids]
