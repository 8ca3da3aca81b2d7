"""From the arguments of `Engine.generate`, which are fields of `/generate`, to checked inputs."""

import difflib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec

from sglang.srt.core.messages import GenerateInput, ModelCard, SessionRef
from sglang.srt.core.sampling_params import SamplingParams
from sglang.srt.entrypoints.answer_inputs import answer_inputs, embedding_input

EXACTLY_ONE = "Either text, input_ids or input_embeds should be provided."
DEFAULT_MAX_NEW_TOKENS = 128
LIST_FIELDS = ("stop", "stop_regex", "stop_token_ids")
OPTIONS = {"session": "session_params", "lora_name": "lora_path"}


IdsOrLists = Sequence[int] | Sequence[Sequence[int]]


class GenerateOptions(TypedDict, total=False):
    """Keywords of `Engine.generate`: fields of `/generate`. A list has a value for each prompt."""

    rid: str | Sequence[str] | None
    return_logprob: bool | Sequence[bool]
    logprob_start_len: int | Sequence[int] | None  # -1 or None: of the answer only
    top_logprobs_num: int | Sequence[int] | None
    token_ids_logprob: IdsOrLists | None
    return_text_in_logprobs: bool
    extra_key: str | Sequence[str | None] | None  # namespace of the prefix cache
    cache_salt: str | Sequence[str | None] | None  # appended to it
    lora_path: str | Sequence[str | None] | None  # the name of an adapter
    priority: int | Sequence[int] | None
    routing_key: str | Sequence[str] | None
    custom_logit_processor: str | Sequence[str | None] | None
    session_params: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None


class Prompts(TypedDict):
    """What is to be continued, or embedded: one of both."""

    prompt: str | Sequence[str] | None
    input_ids: IdsOrLists | None


@dataclass(frozen=True)
class ServedModel:
    """What of the model matters between text and ids."""

    card: ModelCard
    tokenizer: Any  # sglang_router.text.Tokenizer
    default_sampling: Mapping[str, Any]
    weight_version: str
    tells_times: bool = False  # answers say when they passed their stages

    def ids_of(self, prompt: str | Sequence[int]) -> list[int]:
        return list(self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)


@dataclass(frozen=True)
class PromptRequest:
    """One prompt: an input per answer."""

    rid: str
    inputs: list[GenerateInput]
    return_text_in_logprobs: bool = False


@dataclass(frozen=True)
class Request:
    """One call. `as_list`: its reply is a list, in the prompts' order."""

    prompts: list[PromptRequest]
    as_list: bool


def generate_request(
    model: ServedModel,
    prompts: Prompts,
    params: Any,
    options: GenerateOptions,
    *,
    stream: bool = False,
) -> Request:
    """Raises ValueError that names the option."""
    _refuse_unknown_options(options)
    lists, is_batch = read_prompts(model, prompts)
    rids = _rids(options.get("rid"), len(lists), is_batch)
    columns = _columns({**options, "sampling_params": params}, len(lists))
    requests = []
    for index, ids in enumerate(lists):
        row = {name: column[index] for name, column in columns.items()}
        path = f"sampling_params[{index}]" if _is_many(params) else "sampling_params"
        own = sampling_params(row["sampling_params"], model, len(ids), path)
        inputs = answer_inputs(
            _wish(rids[index], ids, own, row, stream),
            vocab_size=model.card.vocab_size,
            context_len=model.card.context_len,
        )
        with_text = bool(options.get("return_text_in_logprobs"))
        requests.append(PromptRequest(rids[index], inputs, with_text))
    num_answers = {len(request.inputs) for request in requests}
    if len(num_answers) > 1:
        given = " and ".join(map(str, sorted(num_answers)))
        raise ValueError(f"all sampling_params of one batch must have the same n, got {given}")
    return Request(requests, is_batch or num_answers != {1})


def embedding_request(
    model: ServedModel, prompts: Prompts, rid: str | Sequence[str] | None = None
) -> Request:
    """Raises ValueError that names the argument."""
    lists, is_batch = read_prompts(model, prompts)
    rids = _rids(rid, len(lists), is_batch)
    requests = []
    for own_rid, ids in zip(rids, lists, strict=True):
        wish = embedding_input(
            own_rid, ids, vocab_size=model.card.vocab_size, context_len=model.card.context_len
        )
        requests.append(PromptRequest(own_rid, [_sendable(wish)]))
    return Request(requests, is_batch)


def read_prompts(model: ServedModel, given: Prompts) -> tuple[list[list[int]], bool]:
    """The prompts' token ids, and whether there was a list of prompts."""
    prompt, input_ids = given["prompt"], given["input_ids"]
    if prompt is None and input_ids is None:
        raise ValueError(EXACTLY_ONE)
    if prompt is not None and input_ids is not None:
        raise ValueError(f"{EXACTLY_ONE} Got both prompt and input_ids.")
    if prompt is not None:
        texts = [prompt] if isinstance(prompt, str) else list(prompt)
        return [model.ids_of(text) for text in _checked_texts(texts)], not isinstance(prompt, str)
    many = list(input_ids or ())
    is_batch = bool(many) and _is_many(many[0])
    return _checked_ids(many if is_batch else [many]), is_batch


def _checked_texts(texts: list[Any]) -> list[str]:
    if not texts or not all(texts):
        raise ValueError("prompt cannot be empty.")
    for text in texts:
        if not isinstance(text, str):
            raise ValueError(f"prompt must be a text or a list of texts, got {text!r}")
    return texts


def _checked_ids(lists: list[Any]) -> list[list[int]]:
    for ids in lists:
        if not _is_many(ids):
            raise ValueError(f"input_ids must be token ids, or lists of token ids; got {ids!r}")
        if not ids:
            raise ValueError("input_ids cannot be empty.")
        for token_id in ids:
            if not isinstance(token_id, int) or isinstance(token_id, bool):
                raise ValueError(f"input_ids must hold whole numbers, got {token_id!r}")
    return [list(ids) for ids in lists]


def sampling_params(
    given: Any, model: ServedModel, prompt_len: int, path: str = "sampling_params"
) -> SamplingParams:
    """The caller's values over the model's defaults over the built-in ones."""
    if given is not None and not isinstance(given, Mapping):
        raise ValueError(f"{path} must be a dictionary, got {given!r}")
    values = {name: value for name, value in (given or {}).items() if value is not None}
    _refuse_unknown(path, values, SamplingParams.__struct_fields__, "sampling parameter")
    for name in LIST_FIELDS:
        if name in values and not _is_many(values[name]):
            values[name] = [values[name]]
    values.setdefault(
        "max_new_tokens", min(DEFAULT_MAX_NEW_TOKENS, max(model.card.context_len - prompt_len, 0))
    )
    try:
        return msgspec.convert({**model.default_sampling, **values}, SamplingParams, str_keys=True)
    except msgspec.ValidationError as error:
        raise ValueError(f"{path}: {error}") from None


def spread(name: str, value: Any, num_prompts: int) -> list[Any]:
    """One value per prompt: a single one is repeated, a list must have the right length."""
    if not _is_many(value):
        return [value] * num_prompts
    if len(value) != num_prompts:
        raise ValueError(
            f"{name} must be one value, or a list with one for each of the {num_prompts} prompts, "
            f"got a list of {len(value)}"
        )
    return list(value)


def _columns(options: Mapping[str, Any], num_prompts: int) -> dict[str, list[Any]]:
    columns = {
        name: spread(name, options.get(name), num_prompts)
        for name in (*GenerateOptions.__annotations__, "sampling_params")
        if name not in ("rid", "token_ids_logprob", "return_text_in_logprobs")
    }
    chosen = options.get("token_ids_logprob")
    columns["token_ids_logprob"] = _spread_lists("token_ids_logprob", chosen, num_prompts)
    return columns


def _spread_lists(name: str, value: Any, num_prompts: int) -> list[Any]:
    """Like `spread`, of values that are lists themselves."""
    if value and any(_is_many(one) or one is None for one in value):
        return spread(name, value, num_prompts)
    return [value] * num_prompts


def _wish(
    rid: str, ids: list[int], params: SamplingParams, row: Mapping[str, Any], stream: bool
) -> GenerateInput:
    with_logprobs = bool(row["return_logprob"])
    start = row["logprob_start_len"]
    parts = [row[name] for name in ("extra_key", "cache_salt") if row[name] is not None]
    wish = GenerateInput(
        rid=rid,
        input_ids=ids,
        sampling=params,
        return_logprob=with_logprobs,
        logprob_start_len=start if with_logprobs and start is not None else -1,
        top_logprobs_num=(row["top_logprobs_num"] or 0) if with_logprobs else 0,
        token_ids_logprob=list(row["token_ids_logprob"] or ()) if with_logprobs else [],
        stream=stream,
        priority=row["priority"],
        extra_key="".join(parts) if parts else None,
        lora_name=row["lora_path"] or None,
        routing_key=row["routing_key"],
        custom_logit_processor=row["custom_logit_processor"],
        session=_session(row["session_params"]),
    )
    return _sendable(wish)


def _sendable(wish: GenerateInput) -> GenerateInput:
    """As the scheduler reads it, which has no answer to what it cannot read."""
    options = {OPTIONS.get(name, name): v for name, v in msgspec.structs.asdict(wish).items()}
    params = msgspec.structs.asdict(options.pop("sampling"))
    for option, value in [*options.items(), *((f"sampling_params.{k}", params[k]) for k in params)]:
        try:
            msgspec.msgpack.encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"{option} cannot be sent to the engine: {error}") from None
    try:
        return msgspec.msgpack.decode(msgspec.msgpack.encode(wish), type=GenerateInput)
    except msgspec.ValidationError as error:
        raise ValueError(f"a value has the wrong type: {error}") from None


def _session(given: Any) -> SessionRef | None:
    if given is None:
        return None
    if isinstance(given, Mapping):
        _refuse_unknown("session_params", given, SessionRef.__struct_fields__, "key of it")
    try:
        return msgspec.convert(given, SessionRef)
    except msgspec.ValidationError as error:
        raise ValueError(f"session_params: {error}") from None


def _rids(given: Any, num_prompts: int, is_batch: bool) -> list[str]:
    """One id of a batch becomes `ID_0`, `ID_1` …; without one they are made up."""
    if given is None:
        return [uuid.uuid4().hex for _ in range(num_prompts)]
    if isinstance(given, str):
        return [f"{given}_{index}" for index in range(num_prompts)] if is_batch else [given]
    rids = spread("rid", given, num_prompts)
    for index, rid in enumerate(rids):
        if rid in rids[:index]:
            raise ValueError(f"Duplicate request ID detected: {rid}")
    return rids


def _refuse_unknown_options(options: GenerateOptions) -> None:
    known = GenerateOptions.__annotations__
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"generate() got an unexpected keyword argument {name!r}{hint}")


def _refuse_unknown(
    path: str, values: Mapping[str, Any], known: tuple[str, ...], kind: str
) -> None:
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean `{near[0]}`? " if near else ""
            raise ValueError(f"{path}: `{name}` is no {kind}; {hint}there are: {', '.join(known)}")


def _is_many(value: Any) -> bool:
    return isinstance(value, list | tuple)
