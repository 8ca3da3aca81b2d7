"""`Engine`: a model in the caller's own program."""

import asyncio
import json
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sglang.srt import plugins
from sglang.srt.entrypoints.offline import generation
from sglang.srt.entrypoints.offline.answers import Json
from sglang.srt.entrypoints.offline.controls import EngineControls
from sglang.srt.entrypoints.offline.errors import EngineError
from sglang.srt.entrypoints.offline.model_options import located, options_by_name
from sglang.srt.entrypoints.offline.requests import (
    GenerateOptions,
    IdsOrLists,
    Prompts,
    Request,
    ServedModel,
    embedding_request,
    generate_request,
)
from sglang.srt.entrypoints.offline.scoring import (
    ONE_TOKEN,
    TextOrIds,
    check_labels,
    score_prompts,
    scores_of,
)
from sglang.srt.entrypoints.offline.vectors import shortened
from sglang.srt.entrypoints.offline.worker import OfflineWorker
from sglang.srt.server_args import ServerArgs

if TYPE_CHECKING:
    from typing_extensions import Unpack

Texts = str | Sequence[str]
Params = Mapping[str, Any] | Sequence[Mapping[str, Any]]


class Engine(EngineControls):
    """`Engine(model_path=…)` takes the server's options by name: `page_size=16`.

    Methods may be called from any thread, with and without a running event loop. They raise
    ValueError for the caller's mistakes, and EngineError when the scheduler is gone.
    """

    def __init__(self, *, server_args: ServerArgs | None = None, **options: Any) -> None:
        """Returns when the model is loaded."""
        plugins.load_plugins()
        if server_args is not None and options:
            raise TypeError(f"Engine takes server_args or options, got both: {', '.join(options)}")
        self.server_args = located(server_args or options_by_name(options))
        super().__init__(OfflineWorker(self.server_args))
        # A dropped engine, as when a notebook's cell runs again, ends like one that is shut down.
        self._end = weakref.finalize(self, self._worker.shut_down)
        self._end.atexit = False  # the worker sees to that itself, in time
        try:
            self._model = self._worker.wait(_served_model(self._worker))
        except BaseException:
            self.shutdown()
            raise

    @property
    def tokenizer(self) -> Any:
        """The model's own: a `sglang_router.text.Tokenizer`."""
        return self._model.tokenizer

    def generate(
        self,
        prompt: Texts | None = None,
        sampling_params: Params | None = None,
        input_ids: IdsOrLists | None = None,
        *,
        stream: bool = False,
        **options: "Unpack[GenerateOptions]",
    ) -> Any:
        """The reply of `/generate` to the same fields: a dictionary, or for a list of prompts (and
        for `n` answers) a list in their order. With `stream` an iterator whose items are the whole
        answer so far. `GenerateOptions` has the other keywords.
        """
        request = self._request(prompt, input_ids, sampling_params, options, stream=stream)
        if stream:
            return self._events(request)
        return self._worker.wait(self._reply(request))

    async def async_generate(
        self,
        prompt: Texts | None = None,
        sampling_params: Params | None = None,
        input_ids: IdsOrLists | None = None,
        *,
        stream: bool = False,
        **options: "Unpack[GenerateOptions]",
    ) -> Any:
        """Like `generate`; with `stream` the awaited result is an asynchronous iterator."""
        request = self._request(prompt, input_ids, sampling_params, options, stream=stream)
        if stream:
            return self._async_events(request)
        return await self._wait_async(self._reply(request))

    def encode(
        self,
        prompt: Texts | None = None,
        *,
        input_ids: IdsOrLists | None = None,
        dimensions: int | None = None,
        rid: str | Sequence[str] | None = None,
    ) -> Any:
        """The reply of `/encode`, of an engine with `is_embedding=True`: a dictionary with
        `embedding`, or for a list of prompts a list. `dimensions` shortens the vectors.
        """
        request = embedding_request(self._model, _prompts(prompt, input_ids), rid)
        return self._worker.wait(self._vectors(request, dimensions))

    async def async_encode(
        self,
        prompt: Texts | None = None,
        *,
        input_ids: IdsOrLists | None = None,
        dimensions: int | None = None,
        rid: str | Sequence[str] | None = None,
    ) -> Any:
        """Like `encode`."""
        request = embedding_request(self._model, _prompts(prompt, input_ids), rid)
        return await self._wait_async(self._vectors(request, dimensions))

    def score(
        self,
        query: TextOrIds,
        items: TextOrIds | Sequence[TextOrIds],
        label_token_ids: Sequence[int],
        apply_softmax: bool = False,
        item_first: bool = False,
    ) -> list[list[float]]:
        """Per item the probability of each label as the token after query and item; with
        `apply_softmax` the labels' shares, which add up to 1.
        """
        request = self._score_request(query, items, label_token_ids, item_first)
        return scores_of(self._worker.wait(self._reply(request)), apply_softmax)

    async def async_score(
        self,
        query: TextOrIds,
        items: TextOrIds | Sequence[TextOrIds],
        label_token_ids: Sequence[int],
        apply_softmax: bool = False,
        item_first: bool = False,
    ) -> list[list[float]]:
        """Like `score`."""
        request = self._score_request(query, items, label_token_ids, item_first)
        return scores_of(await self._wait_async(self._reply(request)), apply_softmax)

    def shutdown(self) -> None:
        """Ends the scheduler process and what runs there; does nothing the second time."""
        self._end.detach()
        self._worker.shut_down()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()

    # -------------------------------------------------------------- on the way to the worker

    def _request(
        self,
        prompt: Texts | None,
        input_ids: IdsOrLists | None,
        params: Params | None,
        options: GenerateOptions,
        *,
        stream: bool = False,
    ) -> Request:
        given = _prompts(prompt, input_ids)
        return generate_request(self._model, given, params, options, stream=stream)

    def _score_request(
        self,
        query: TextOrIds,
        items: TextOrIds | Sequence[TextOrIds],
        labels: Sequence[int],
        item_first: bool,
    ) -> Request:
        check_labels(labels, self._model.card.vocab_size)
        ids = [self._model.ids_of(one) for one in score_prompts(query, items, item_first)]
        options: GenerateOptions = {"return_logprob": True, "token_ids_logprob": list(labels)}
        return self._request(None, ids, ONE_TOKEN, options)

    async def _reply(self, request: Request) -> Any:
        return await generation.generate(self._worker.service, self._model, request)

    async def _vectors(self, request: Request, dimensions: int | None) -> Any:
        return await generation.encode(
            self._worker.client, request, lambda vector: shortened(vector, dimensions)
        )

    async def _wait_async(self, work: Any) -> Any:
        return await asyncio.wrap_future(self._worker.submit(work))

    def _events(self, request: Request) -> Iterator[Json]:
        events = generation.stream(self._worker.service, self._model, request)
        try:
            while (event := self._worker.wait(_next(events))) is not None:
                yield event
        finally:
            self._leave(events)

    async def _async_events(self, request: Request) -> AsyncIterator[Json]:
        events = generation.stream(self._worker.service, self._model, request)
        try:
            while (event := await self._wait_async(_next(events))) is not None:
                yield event
        finally:
            self._leave(events)

    def _leave(self, events: AsyncIterator[Json]) -> None:
        """Ends a stream that nobody reads on. Nobody waits for that either, as this may be the
        garbage collector's call.
        """
        with suppress(EngineError):  # it is shut down, and the stream with it
            self._worker.submit(_close(events))


async def _next(events: AsyncIterator[Json]) -> Json | None:
    return await anext(events, None)


async def _close(events: Any) -> None:
    await events.aclose()


def _prompts(prompt: Texts | None, input_ids: IdsOrLists | None) -> Prompts:
    return {"prompt": prompt, "input_ids": input_ids}


async def _served_model(worker: OfflineWorker) -> ServedModel:
    from sglang_router.text import Tokenizer

    card = worker.service.ready.model
    defaults = worker.service.model_info()["default_sampling_params_json"]
    tokenizer = await asyncio.to_thread(Tokenizer, card.tokenizer_folder)
    args = worker.service.args
    return ServedModel(
        card, tokenizer, json.loads(defaults), args.weight_version, args.enable_metrics
    )
