"""Holds back requests until their constraint is compiled; the scheduler never waits for it."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field

from sglang.srt.constrained.agreement import Opinion, RankAgreement, State
from sglang.srt.constrained.base_grammar_backend import (
    BaseGrammarBackend,
    BaseGrammarObject,
    GrammarKey,
    InvalidGrammarObject,
)
from sglang.srt.constrained.compile_process import CompilerMissing, CompileTimeout
from sglang.srt.constrained.limits import (
    GrammarLimits,
    too_big,
    too_slow,
    why_no_json,
    why_too_large,
)
from sglang.srt.core.messages import FinishReason, grammar_failed
from sglang.srt.core.request import Req
from sglang.srt.core.sampling_params import SamplingParams

logger = logging.getLogger(__name__)
POLL_INTERVAL = 0.005  # seconds that a look for compiled grammars may take when nothing else runs
KEY_TYPES = {"json_schema": "json"}  # a constraint's name in a request → in a key, if they differ


def grammar_key(params: SamplingParams) -> GrammarKey | None:
    """(kind, text) of the constraint, or None."""
    if not params.constraints:
        return None
    name = params.constraints[0]
    return KEY_TYPES.get(name, name), getattr(params, name)


def why_refused(backend: BaseGrammarBackend, params: SamplingParams) -> str | None:
    """The sentence for a constraint whose text alone says that it cannot be honoured."""
    key = grammar_key(params)
    if key is None or key in backend.cache:
        return None
    field, (kind, text) = params.constraints[0], key
    why = why_too_large(field, kind, text, backend.limits) or why_no_json(field, kind, text)
    if why is None and (problem := backend.check(kind, text)) is not None:
        why = f"{field} cannot be honoured: {problem}"
    return why


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
    """No compiler had time for it, which says nothing about the constraint."""


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

    With an `agreement` every request with a constraint waits here until all ranks agree on it.
    """

    def __init__(
        self,
        backend: BaseGrammarBackend | None,
        agreement: RankAgreement | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.grammar_backend = backend
        self.grammar_queue: list[Req] = []
        self._limits = GrammarLimits() if backend is None else backend.limits
        self._grace = 0.0 if backend is None else backend.compile_grace
        self._agreement = agreement
        self._compiling: dict[GrammarKey, _Compilation] = {}
        self._clock = clock
        self.counters = GrammarCounters()

    def __len__(self) -> int:
        return len(self.grammar_queue)

    def can_take(self, params: SamplingParams) -> bool:
        """Whether a request with these parameters may come now; on all ranks alike."""
        key = grammar_key(params)
        if key is None:
            return True
        waiting = {grammar_key(req.sampling_params) for req in self.grammar_queue}
        return key in waiting or len(waiting) < self._limits.num_compiling

    def process_req_with_grammar(self, req: Req) -> bool:
        """Sets `req.grammar`, or parks the request: then returns True.

        A parked one comes out of `get_ready_grammar_requests`, with a grammar or an invalid one.
        """
        key = grammar_key(req.sampling_params)
        if key is None:
            return False
        self.counters.num_looked_up += 1
        compilation = self._compiling.get(key) or self._begin(req, key)
        if compilation is not None:
            compilation.reqs.append(req)
        may_go_on = not (req.grammar is None or isinstance(req.grammar, InvalidGrammarObject))
        if may_go_on and self._agreement is None:
            return False
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
            if not self._is_over(self._compiling[key]):
                continue  # it was asked for again
            compilation = self._compiling.pop(key)
            grammar = self._result(key, compilation)
            if not isinstance(grammar, NeverCompiled):
                self._remember(key, grammar)
            for req in compilation.reqs:
                req.grammar = _checked(req, _copy(grammar, req.require_reasoning))
        ready = (
            self._agreed()
            if self._agreement is not None and self.grammar_queue
            else [req for req in self.grammar_queue if req.grammar is not None]
        )
        for req in ready:
            req.times.compiled = self._clock()
        if ready:
            done = {id(req) for req in ready}
            self.grammar_queue = [req for req in self.grammar_queue if id(req) not in done]
        return ready

    def abort_request(self, req: Req) -> None:
        """A parked request ends; a compilation that has begun goes on for whoever asks next."""
        self.grammar_queue.remove(req)
        self.counters.num_aborted += 1
        req.times.compiled = self._clock()
        self._leave_compilation(req)

    def clear(self) -> None:
        """Forgets every compiled grammar."""
        if self.grammar_backend is not None:
            self.grammar_backend.reset()

    def close(self) -> None:
        """Ends what compiles."""
        if self.grammar_backend is not None:
            self.grammar_backend.close()

    @property
    def cache_size(self) -> tuple[int, int]:
        """Compiled constraints that are kept, and their bytes."""
        backend = self.grammar_backend
        return (0, 0) if backend is None else (len(backend.cache), backend.cached_bytes)

    @property
    def _backend(self) -> BaseGrammarBackend:
        assert self.grammar_backend is not None, "admission refuses constraints without a backend"
        return self.grammar_backend

    def _begin(self, req: Req, key: GrammarKey) -> "_Compilation | None":
        """A new compilation; or None, and `req.grammar` is what is known without one."""
        # Those whose requests have gone count here, so that nobody can pile them up.
        if key not in self._backend.cache and len(self._compiling) >= self._limits.num_compiling:
            req.grammar = NeverCompiled(f"{len(self._compiling)} others are compiled; try it later")
            return None
        found = self._look_up(key, req.require_reasoning)
        if not isinstance(found, Future):
            req.grammar = _checked(req, found)
            return None
        self._compiling[key] = compilation = _Compilation(found, self._clock())
        return compilation

    def _look_up(
        self, key: GrammarKey, require_reasoning: bool
    ) -> "BaseGrammarObject | Future[BaseGrammarObject | None]":
        try:
            found, is_hit = self._backend.get_cached_or_future_value(key, require_reasoning)
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
        return now - since >= self._limits.compile_seconds + self._grace

    def _result(self, key: GrammarKey, compilation: _Compilation) -> BaseGrammarObject:
        """Of a compilation that is over; without constraint nobody goes on."""
        future, seconds = compilation.future, self._limits.compile_seconds
        if not future.done() and future.cancel():
            self.counters.num_timeouts += 1
            waited = self._clock() - compilation.submitted
            return NeverCompiled(f"others have kept every compiler busy for {waited:.0f} s")
        if not future.done():
            self.counters.num_timeouts += 1
            if self._backend.give_up(future):
                self._ask_again()
            return InvalidGrammarObject(too_slow(seconds))
        if future.cancelled():
            return InvalidGrammarObject("its compilation was cancelled")
        error = future.exception()
        if isinstance(error, CompilerMissing):
            return NeverCompiled(str(error))
        if isinstance(error, CompileTimeout):
            self.counters.num_timeouts += 1
            return _invalid(error)
        grammar = None if error is not None else future.result()
        self._note_seconds(compilation, grammar)
        if error is not None:
            logger.warning("A %s constraint did not compile: %s", key[0], error)
            return _invalid(error)
        if grammar is None:
            return InvalidGrammarObject("the backend returned nothing")
        allowed = self._limits.compiled_bytes
        if grammar.memory_bytes > allowed:
            return InvalidGrammarObject(too_big(grammar.memory_bytes, allowed))
        return grammar

    def _note_seconds(self, compilation: _Compilation, grammar: BaseGrammarObject | None) -> None:
        """As its thread has measured, else as seen from here, between two steps."""
        stats = None if grammar is None else grammar.grammar_stats
        seconds = None if stats is None else stats.compilation_time
        if seconds is None:
            since = compilation.submitted if compilation.started is None else compilation.started
            seconds = self._clock() - since
        self.counters.compilation_seconds.append(seconds)

    def _ask_again(self) -> None:
        """For what had not begun when other threads took over."""
        for key, compilation in self._compiling.items():
            if compilation.future.cancelled():
                found = self._look_up(key, require_reasoning=False)
                if not isinstance(found, Future):
                    known: Future[BaseGrammarObject | None] = Future()
                    known.set_result(found)
                    found = known
                compilation.future = found
                compilation.submitted, compilation.started = self._clock(), None

    def _agreed(self) -> list[Req]:
        """Those on which all ranks agree that they go on, or that they end."""
        assert self._agreement is not None
        queue, ready = self.grammar_queue, []
        opinions = self._agreement.agree([req.rid for req in queue], [_opinion(r) for r in queue])
        for req, opinion in zip(queue, opinions, strict=True):
            if opinion.state is State.PENDING:
                continue
            if opinion.state is not State.READY:
                self._leave_compilation(req)
                never = opinion.state is State.NEVER_COMPILED
                failure = NeverCompiled if never else InvalidGrammarObject
                req.grammar = failure(opinion.message)
            ready.append(req)
        return ready

    def _leave_compilation(self, req: Req) -> None:
        """What nobody waits for does not begin, or it would keep compilers from others."""
        for key, compilation in list(self._compiling.items()):
            if req in compilation.reqs:
                compilation.reqs.remove(req)
                if not compilation.reqs and compilation.future.cancel():
                    del self._compiling[key]


def _opinion(req: Req) -> Opinion:
    grammar = req.grammar
    if grammar is None:
        return Opinion(State.PENDING)
    if not isinstance(grammar, InvalidGrammarObject):
        return Opinion(State.READY)
    never = isinstance(grammar, NeverCompiled)
    return Opinion(State.NEVER_COMPILED if never else State.REFUSED, grammar.error_message)


def _checked(req: Req, grammar: BaseGrammarObject) -> BaseGrammarObject:
    """The grammar, unless the model shall reason first and the grammar knows nothing of that."""
    knows = type(grammar).maybe_init_reasoning is not BaseGrammarObject.maybe_init_reasoning
    if not req.require_reasoning or knows or isinstance(grammar, InvalidGrammarObject):
        return grammar
    return InvalidGrammarObject(
        "require_reasoning is true, and this engine's grammar backend lets no model reason before "
        "its constraint; leave require_reasoning out, or start the engine with a backend that is "
        "wrapped in a ReasonerGrammarBackend"
    )


def _copy(grammar: BaseGrammarObject, require_reasoning: bool) -> BaseGrammarObject:
    """A state of its own for one answer."""
    try:
        copied = grammar.copy()
        copied.maybe_init_reasoning(require_reasoning)
    except Exception as error:
        logger.exception("A grammar cannot be copied")
        return _invalid(error)
    return copied


def _invalid(error: BaseException) -> InvalidGrammarObject:
    return InvalidGrammarObject(str(error) or type(error).__name__)
