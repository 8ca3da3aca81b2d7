"""The names that programs are written with: `import sglang as sgl`."""

import re
from collections.abc import Callable, Sequence
from typing import Any, overload

from sglang.lang.choices import ChoicesSamplingMethod, token_length_normalized
from sglang.lang.global_config import global_config
from sglang.lang.ir import (
    SglExpr,
    SglExprList,
    SglFunction,
    SglGen,
    SglImage,
    SglRoleBegin,
    SglRoleEnd,
    SglSelect,
    SglSeparateReasoning,
    SglVideo,
    as_expression,
    backend_of,
    turn_of,
)
from sglang.lang.reasoning import check_model_type

GREEDY = 0.0


@overload
def function(func: Callable[..., Any]) -> SglFunction: ...


@overload
def function(
    func: None = None, num_api_spec_tokens: int | None = None
) -> Callable[[Callable[..., Any]], SglFunction]: ...


def function(
    func: Callable[..., Any] | None = None, num_api_spec_tokens: int | None = None
) -> SglFunction | Callable[[Callable[..., Any]], SglFunction]:
    """Makes a program of a function whose first parameter is `s`.

    `num_api_spec_tokens`: providers without a prefix cache answer several `gen` from one call of
    so many tokens, where the model writes what the program would have written between them.
    """
    if func is not None:
        return SglFunction(func, num_api_spec_tokens)
    return lambda decorated: SglFunction(decorated, num_api_spec_tokens)


def gen(  # noqa: PLR0913
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = None,
    stop_regex: str | Sequence[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    dtype: type | str | None = None,
    choices: Sequence[str] | None = None,
    choices_method: ChoicesSamplingMethod | None = None,
    regex: str | None = None,
    json_schema: str | None = None,
) -> SglGen | SglSelect:
    """An answer of the model, stored under `name`.

    What is left out is taken from `run`. With `choices` it is a `select`. `dtype` (int, float,
    str, bool), `regex` and `json_schema` say what the answer must look like.
    """
    if choices is not None:
        method = choices_method or token_length_normalized
        return select(name, choices, GREEDY if temperature is None else temperature, method)
    _check_regex(regex)
    given = {
        "max_new_tokens": max_tokens,
        "min_new_tokens": min_tokens,
        "n": n,
        "stop": stop,
        "stop_token_ids": stop_token_ids,
        "stop_regex": stop_regex,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty,
        "ignore_eos": ignore_eos,
        "return_logprob": return_logprob,
        "logprob_start_len": logprob_start_len,
        "top_logprobs_num": top_logprobs_num,
        "return_text_in_logprobs": return_text_in_logprobs,
        "dtype": dtype,
        "regex": regex,
        "json_schema": json_schema,
    }
    return SglGen(name, {key: value for key, value in given.items() if value is not None})


def gen_int(name: str | None = None, *args: Any, **options: Any) -> SglGen:
    """`gen` for a whole number."""
    return _typed(int, name, *args, **options)


def gen_string(name: str | None = None, *args: Any, **options: Any) -> SglGen:
    """`gen` for a text in double quotes."""
    return _typed(str, name, *args, **options)


def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float = GREEDY,
    choices_method: ChoicesSamplingMethod = token_length_normalized,
) -> SglSelect:
    """The likeliest of the choices, stored under `name`."""
    assert choices is not None, "select needs choices, a list of texts"
    if not choices or not all(isinstance(choice, str) and choice for choice in choices):
        raise ValueError(f"choices must be texts that are not empty, got {choices!r}")
    return SglSelect(name, list(choices), temperature, choices_method)


def image(expr: str | bytes) -> SglImage:
    """An image: a path, a URL or bytes."""
    return SglImage(expr)


def video(path: str, num_frames: int) -> SglVideo:
    """A video, shown to the model as `num_frames` images."""
    return SglVideo(path, num_frames)


def system(expr: Any = None) -> SglExprList | SglRoleBegin:
    """A turn of the system; without `expr` only its beginning."""
    return SglRoleBegin("system") if expr is None else turn_of("system", expr)


def user(expr: Any = None) -> SglExprList | SglRoleBegin:
    """A turn of the user; without `expr` only its beginning."""
    return SglRoleBegin("user") if expr is None else turn_of("user", expr)


def assistant(expr: Any = None) -> SglExprList | SglRoleBegin:
    """A turn of the model; without `expr` only its beginning."""
    return SglRoleBegin("assistant") if expr is None else turn_of("assistant", expr)


def system_begin() -> SglRoleBegin:
    return SglRoleBegin("system")


def system_end() -> SglRoleEnd:
    return SglRoleEnd("system")


def user_begin() -> SglRoleBegin:
    return SglRoleBegin("user")


def user_end() -> SglRoleEnd:
    return SglRoleEnd("user")


def assistant_begin() -> SglRoleBegin:
    return SglRoleBegin("assistant")


def assistant_end() -> SglRoleEnd:
    return SglRoleEnd("assistant")


def separate_reasoning(expr: SglExpr, model_type: str | None = None) -> SglSeparateReasoning:
    """Answers without the model's reasoning, which goes into `<name>_reasoning_content`."""
    check_model_type(model_type)
    return SglSeparateReasoning(as_expression(expr), model_type)


def set_default_backend(backend: Any) -> None:
    """What programs run against from now on: a backend or a Runtime."""
    global_config.default_backend = backend


def flush_cache(backend: Any = None) -> None:
    """Empties the server's prefix cache."""
    backend_of(backend).flush_cache()


def get_server_info(backend: Any = None) -> dict[str, Any]:
    """What the server tells about itself."""
    return backend_of(backend).get_server_info()


def _check_regex(regex: str | None) -> None:
    try:
        re.compile(regex or "")
    except re.error as error:
        raise ValueError(f"regex {regex!r} is not a regular expression: {error}") from error


def _typed(dtype: type, name: str | None, *args: Any, **options: Any) -> SglGen:
    odd = [
        key for key in ("min_tokens", "dtype", "choices", "regex", "json_schema") if key in options
    ]
    if odd:
        raise TypeError(f"gen_int and gen_string have no {odd[0]}; use gen")
    expr = gen(name, *_with_min_tokens(args), **{**options, "dtype": dtype})
    assert isinstance(expr, SglGen)
    return expr


def _with_min_tokens(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """`gen` has min_tokens as its third parameter, the typed forms do not."""
    return (args[0], None, *args[1:]) if args else ()
