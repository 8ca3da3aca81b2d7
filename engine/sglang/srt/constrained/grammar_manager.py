"""Holds back requests until their constraint is compiled; the scheduler never waits for it."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field

from sglang.srt.constrained.base_grammar_backend import (
    BaseGrammarBackend,
    BaseGrammarObject,
    GrammarKey,
    InvalidGrammarObject,
)
from sglang.srt.core.messages import FinishReason, grammar_failed
from sglang.srt.core.request import Req
from sglang.srt.core.sampling_params import SamplingParams

logger = logging.getLogger(__name__)
POLL_INTERVAL = 0.005  # seconds that a look for compiled grammars may take when nothing else runs
COMPILE_TIMEOUT = 60.0  # seconds of one compilation, and of its wait for a thread before that
MAX_COMPILING = 64  # constraints; more are refused until one is done
KEY_TYPES = {"json_schema": "json"}  # a constraint's name in a request → in a key, if they differ


def grammar_key(params: SamplingParams) -> GrammarKey | None:
    """(kind, text) of the constraint, or None."""
    if not params.constraints:
        return None
    name = params.constraints[0]
    return KEY_TYPES.get(name, name), getattr(params, name)


def why_invalid(req: Req) -> FinishReason:
    """Of a request whose constraint did not compile."""
    message = (
        f"{req.sampling_params.constraints[0]} cannot be honoured: {req.grammar.error_message}"
    )
    status = 503 if isinstance(req.grammar, NeverCompiled) else 400
    return FinishReason(type="abort", message=message, status_code=status)


def accept_token(req: Req, token_id: int) -> None:
    """Tells the grammar what was appended. It may end the answer, and does when it fails: without
    its constraint no answer goes on.
    """
    if req.grammar is None or req.finished:
        return
    try:
        req.grammar.accept_token(token_id)
        is_over = req.grammar.is_terminated()
    except Exception as error:
        logger.exception("The grammar of %s failed", req.rid)
        req.finished_reason = grammar_failed(error)
        return
    if is_over:
        req.finished_reason = FinishReason(type="stop", matched=token_id)


class NeverCompiled(InvalidGrammarObject):
    """Its compilation did not begin in time, which says nothing about the constraint."""


@dataclass
class _Compilation:
    future: "Future[BaseGrammarObject | None]"
    submitted: float
    reqs: list[Req] = field(default_factory=list)
    started: float | None = None  # when it was first seen to run


@dataclass
class GrammarCounters:
    """What happened since the start; and how long compilations took, until somebody takes it."""

    num_looked_up: int = 0
    num_cache_hits: int = 0
    num_timeouts: int = 0
    num_aborted: int = 0  # requests that ended while their constraint was compiled
    compilation_seconds: list[float] = field(default_factory=list)


class GrammarManager:
    """Owns the grammar backend, and the requests whose constraint it still compiles.

    Requests with the same constraint share one compilation, and each gets a copy. What does not
    compile becomes an `InvalidGrammarObject`, kept like any other: such a request has to be
    refused. Whatever a backend raises costs those who asked, never the scheduler.
    """

    def __init__(
        self,
        backend: BaseGrammarBackend | None,
        compile_timeout: float = COMPILE_TIMEOUT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.grammar_backend = backend
        self.grammar_queue: list[Req] = []
        self._compiling: dict[GrammarKey, _Compilation] = {}
        self._compile_timeout = compile_timeout
        self._clock = clock
        self.counters = GrammarCounters()

    def __len__(self) -> int:
        return len(self.grammar_queue)

    def can_take(self, params: SamplingParams) -> bool:
        """Whether a request with these parameters may come now."""
        key = grammar_key(params)
        return key is None or key in self._compiling or len(self._compiling) < MAX_COMPILING

    def process_req_with_grammar(self, req: Req) -> bool:
        """Sets `req.grammar`, or parks the request: then returns True.

        A parked one comes out of `get_ready_grammar_requests`, with a grammar or an invalid one.
        """
        key = grammar_key(req.sampling_params)
        if key is None:
            return False
        self.counters.num_looked_up += 1
        compilation = self._compiling.get(key)
        if compilation is None:
            found = self._look_up(key)
            if not isinstance(found, Future):
                req.grammar = found
                is_invalid = isinstance(found, InvalidGrammarObject)
                if is_invalid:
                    self.grammar_queue.append(req)
                return is_invalid
            compilation = self._compiling[key] = _Compilation(found, self._clock())
        compilation.reqs.append(req)
        self.grammar_queue.append(req)
        return True

    def get_ready_grammar_requests(self, *, may_wait: bool = False) -> list[Req]:
        """Takes out the requests whose `grammar` is known now, in the order of their arrival.

        With `may_wait`, when the caller has nothing else to do, it looks for `POLL_INTERVAL`.
        """
        if self._compiling and may_wait:
            futures = [compilation.future for compilation in self._compiling.values()]
            wait(futures, timeout=POLL_INTERVAL, return_when=FIRST_COMPLETED)
        for key in [key for key, each in self._compiling.items() if self._is_over(each)]:
            compilation = self._compiling.pop(key)
            grammar = self._result(key, compilation)
            if not isinstance(grammar, NeverCompiled):
                self._remember(key, grammar)
            for req in compilation.reqs:
                req.grammar = _copy(grammar)
        ready = [req for req in self.grammar_queue if req.grammar is not None]
        for req in ready:
            req.times.compiled = self._clock()
        if ready:
            self.grammar_queue = [req for req in self.grammar_queue if req.grammar is None]
        return ready

    def abort_request(self, req: Req) -> None:
        """A parked request ends; the compilation goes on for whoever asks next."""
        self.grammar_queue.remove(req)
        self.counters.num_aborted += 1
        req.times.compiled = self._clock()
        for compilation in self._compiling.values():
            if req in compilation.reqs:
                compilation.reqs.remove(req)

    def clear(self) -> None:
        """Forgets every compiled grammar."""
        if self.grammar_backend is not None:
            self.grammar_backend.reset()

    @property
    def _backend(self) -> BaseGrammarBackend:
        assert self.grammar_backend is not None, "admission refuses constraints without a backend"
        return self.grammar_backend

    def _look_up(self, key: GrammarKey) -> "BaseGrammarObject | Future[BaseGrammarObject | None]":
        try:
            found, is_hit = self._backend.get_cached_or_future_value(key, require_reasoning=False)
            self.counters.num_cache_hits += bool(is_hit)
        except Exception as error:
            logger.exception("The grammar backend failed to look up a %s constraint", key[0])
            return _invalid(error)
        return InvalidGrammarObject("the backend returned nothing") if found is None else found

    def _remember(self, key: GrammarKey, grammar: BaseGrammarObject) -> None:
        try:
            self._backend.set_cache(key, grammar)
        except Exception:
            logger.exception("The grammar backend failed to keep a %s constraint", key[0])

    def _is_over(self, compilation: _Compilation) -> bool:
        if compilation.future.done():
            return True
        now = self._clock()
        if compilation.started is None and compilation.future.running():
            compilation.started = now
        since = compilation.submitted if compilation.started is None else compilation.started
        return now - since >= self._compile_timeout

    def _result(self, key: GrammarKey, compilation: _Compilation) -> BaseGrammarObject:
        """Of a compilation that is over; without constraint nobody goes on."""
        if not compilation.future.done():
            self.counters.num_timeouts += 1
        elif not compilation.future.cancelled():
            since = compilation.submitted if compilation.started is None else compilation.started
            self.counters.compilation_seconds.append(self._clock() - since)
        if compilation.started is None and not compilation.future.done():
            compilation.future.cancel()
            return NeverCompiled(
                f"other constraints have kept every compiler busy for {self._compile_timeout:g} s"
            )
        if not compilation.future.done():
            return InvalidGrammarObject(f"not compiled within {self._compile_timeout:g} s")
        if compilation.future.cancelled():
            return InvalidGrammarObject("its compilation was cancelled")
        error = compilation.future.exception()
        if error is not None:
            logger.warning("A %s constraint did not compile: %s", key[0], error)
            return _invalid(error)
        return compilation.future.result() or InvalidGrammarObject("the backend returned nothing")


def _copy(grammar: BaseGrammarObject) -> BaseGrammarObject:
    """A state of its own for one answer."""
    try:
        copied = grammar.copy()
        copied.maybe_init_reasoning(False)
    except Exception as error:
        logger.exception("A grammar cannot be copied")
        return _invalid(error)
    return copied


def _invalid(error: BaseException) -> InvalidGrammarObject:
    return InvalidGrammarObject(str(error) or type(error).__name__)
