"""What a grammar backend is: compiles constraints, and masks tokens that would break them."""

import logging
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from sglang.extension.registry import source_of
from sglang.srt.arg_groups.grammars import ABSENT_BACKENDS
from sglang.srt.constrained.limits import GrammarLimits
from sglang.srt.extension_points import GRAMMAR_BACKENDS

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

GRAMMAR_BACKEND_REGISTRY = GRAMMAR_BACKENDS
GrammarKey = tuple[str, str]  # (json | regex | ebnf | structural_tag, its text)
MAX_LOST_THREADS = 64  # that compile for nobody any more; beyond that no thread replaces another


@dataclass
class GrammarStats:
    """What compiling and walking one grammar cost."""

    compilation_time: float | None = None  # seconds
    schema_count: int | None = None
    ebnf_size: int | None = None
    is_cache_hit: bool = False
    is_grammar_aborted: bool = False
    tree_traversal_time: list[float] = field(default_factory=list)  # seconds
    dispatch_type: str | None = None
    num_timeout: int = 0


class BaseGrammarObject:
    """A compiled constraint and how far one answer has come in it."""

    memory_bytes = 0  # of the compiled constraint, which copies share; the cache counts it

    def __init__(self) -> None:
        self._finished = False
        self.grammar_stats: GrammarStats | None = None
        self.current_token: int | None = None

    @property
    def finished(self) -> bool:
        return self._finished

    @finished.setter
    def finished(self, finished: bool) -> None:
        self._finished = finished

    def maybe_init_reasoning(self, reasoning: bool) -> None:
        """Called for each answer before its first token; only reasoning grammars care."""

    def accept_token(self, token: int) -> None:
        """Called with every token of the answer, in order."""
        raise NotImplementedError

    def rollback(self, k: int) -> None:
        """Takes the last `k` tokens back."""
        raise NotImplementedError

    def is_terminated(self) -> bool:
        """Whether only the end of the answer may follow."""
        return False

    def copy(self) -> "BaseGrammarObject":
        """A state of its own for another answer. Stateless grammars return themselves."""
        return self

    def allocate_vocab_mask(self, vocab_size: int, batch_size: int, device: Any) -> "torch.Tensor":
        """A mask for a batch, in whatever form `apply_vocab_mask` takes; it allows everything in a
        row that is not filled.
        """
        return self.allocate_token_mask(vocab_size, batch_size, device)

    def allocate_token_mask(self, vocab_size: int, batch_size: int, device: Any) -> "torch.Tensor":
        """Another name of `allocate_vocab_mask`: a backend implements either."""
        raise NotImplementedError

    def fill_vocab_mask(self, vocab_mask: "torch.Tensor", idx: int) -> None:
        """Writes the tokens allowed now into row `idx`."""
        raise NotImplementedError

    @staticmethod
    def reset_vocab_mask(vocab_mask: "torch.Tensor") -> None:
        """Makes a used mask allow everything."""
        raise NotImplementedError

    @staticmethod
    def move_vocab_mask(vocab_mask: "torch.Tensor", device: Any) -> "torch.Tensor":
        raise NotImplementedError

    @staticmethod
    def apply_vocab_mask(logits: "torch.Tensor", vocab_mask: "torch.Tensor") -> None:
        """Sets forbidden tokens of `logits` to -inf, in place."""
        raise NotImplementedError

    def try_jump_forward(self, tokenizer: Any) -> tuple[list[int], str] | None:
        """Tokens and text that must follow whatever the model says, or None."""
        raise NotImplementedError

    def jump_forward_str_state(self, helper: tuple[list[int], str]) -> tuple[str, int]:
        """The text of a jump, and the state after it."""
        raise NotImplementedError

    def jump_and_retokenize(
        self, old_output_ids: list[int], new_output_ids: list[int], next_state: int
    ) -> None:
        """The answer after a jump was tokenized anew."""
        raise NotImplementedError


class InvalidGrammarObject(BaseGrammarObject):
    """Stands for a constraint that did not compile; cached, so that it fails at once next time."""

    def __init__(self, error_message: str = "Unknown grammar error") -> None:
        super().__init__()
        self.error_message = error_message

    def __repr__(self) -> str:
        return f"InvalidGrammarObject(error_message={self.error_message!r})"


class BaseGrammarBackend:
    """Compiles off the scheduler's thread, and keeps what it compiled.

    A backend overrides the `dispatch_…` of what it supports, or `compile_grammar` for all.
    """

    # Seconds beyond `limits.compile_seconds` for one that ends its compilations by itself.
    compile_grace = 0.0
    limits = GrammarLimits()  # `create_grammar_backend` sets those of the options

    def __init__(self, num_threads: int | None = None) -> None:
        """So many constraints are compiled at once; None: as many as Python thinks fit."""
        self.executor = ThreadPoolExecutor(num_threads, thread_name_prefix="sglang-grammar")
        self.cache: dict[GrammarKey, BaseGrammarObject] = {}  # least recently used first
        self.cached_bytes = 0
        self._bytes_of: dict[GrammarKey, int] = {}
        self._stuck: list[Future[Any]] = []  # in threads of the executor, for nobody
        self._lost: list[Future[Any]] = []  # the same, in threads of executors before it

    def check(self, key_type: str, key_string: str) -> str | None:
        """Why the constraint cannot be honoured, as far as its text says; None: compile it.

        Called for each new constraint when its request arrives, so it has to be quick. The text is
        within the limits, and is JSON where it should be.
        """
        return None

    def get_cached_or_future_value(
        self, key: GrammarKey, require_reasoning: bool
    ) -> tuple[BaseGrammarObject | None, bool] | tuple["Future[BaseGrammarObject | None]", bool]:
        """(a fresh copy, True) of a known constraint, else (a future, False).

        Whoever gets the future puts its result into the cache.
        """
        value = self.cache.pop(key, None)
        if value is None:
            return self.executor.submit(self._init_value_dispatch, key, require_reasoning), False
        self.cache[key] = value
        copied = value.copy()
        copied.maybe_init_reasoning(require_reasoning)
        return copied, True

    def set_cache(self, key: GrammarKey, value: BaseGrammarObject) -> None:
        """Keeps the value, and forgets what was not used for longest beyond the limits.

        What alone is beyond them is not kept.
        """
        self._forget(key)
        size = sys.getsizeof(key[1]) + value.memory_bytes
        if size > self.limits.cache_bytes or not self.limits.cache_entries:
            return
        self.cache[key], self._bytes_of[key] = value, size
        self.cached_bytes += size
        while (
            len(self.cache) > self.limits.cache_entries
            or self.cached_bytes > self.limits.cache_bytes
        ):
            self._forget(next(iter(self.cache)))

    def _forget(self, key: GrammarKey) -> None:
        self.cache.pop(key, None)
        self.cached_bytes -= self._bytes_of.pop(key, 0)

    def reset(self) -> None:
        self.cache.clear()
        self._bytes_of.clear()
        self.cached_bytes = 0

    def give_up(self, future: "Future[Any]") -> bool:
        """Nobody waits for the compilation any more, and it cannot be interrupted.

        When such ones keep every thread busy, new threads take over: then it returns True, and
        what had not begun has to be asked for again.
        """
        self._lost = [each for each in self._lost if not each.done()]
        self._stuck = [each for each in (*self._stuck, future) if not each.done()]
        num_threads = self.executor._max_workers
        if len(self._stuck) < num_threads:
            return False
        if len(self._lost) + len(self._stuck) > MAX_LOST_THREADS:
            return False
        logger.warning("%d compilations do not end; other threads take over", len(self._stuck))
        self._lost, self._stuck = self._lost + self._stuck, []
        self.executor.shutdown(wait=False, cancel_futures=True)
        self.executor = ThreadPoolExecutor(num_threads, thread_name_prefix="sglang-grammar")
        return True

    def close(self) -> None:
        """Called once, when the engine ends. Threads that still compile are not waited for."""
        self.executor.shutdown(wait=False, cancel_futures=True)

    def compile_grammar(self, key_type: str, key_string: str) -> BaseGrammarObject | None:
        """Any kind of constraint that has no `dispatch_…` of its own."""
        return self._not_supported(key_type, key_string)

    def dispatch_json(self, key_string: str) -> BaseGrammarObject | None:
        return self.compile_grammar("json", key_string)

    def dispatch_regex(self, key_string: str) -> BaseGrammarObject | None:
        return self.compile_grammar("regex", key_string)

    def dispatch_ebnf(self, key_string: str) -> BaseGrammarObject | None:
        return self.compile_grammar("ebnf", key_string)

    def dispatch_structural_tag(self, key_string: str) -> BaseGrammarObject | None:
        return self.compile_grammar("structural_tag", key_string)

    def dispatch_fallback(self, key_type: str, key_string: str) -> BaseGrammarObject | None:
        """Of a kind that nobody knows."""
        raise ValueError(f"Invalid key_type: {key_type}={key_string}")

    def _not_supported(self, key_type: str, key_string: str) -> InvalidGrammarObject:
        message = f"Skip unsupported {key_type=}, {key_string=}"
        logger.warning("%s", message)
        return InvalidGrammarObject(message)

    def _init_value_dispatch(
        self, key: GrammarKey, require_reasoning: bool
    ) -> BaseGrammarObject | None:
        start = time.perf_counter()
        key_type, key_string = key
        dispatch: dict[str, Callable[[str], BaseGrammarObject | None]] = {
            "json": self.dispatch_json,
            "regex": self.dispatch_regex,
            "ebnf": self.dispatch_ebnf,
            "structural_tag": self.dispatch_structural_tag,
        }
        if key_type in dispatch:
            grammar = dispatch[key_type](key_string)
        else:
            grammar = self.dispatch_fallback(key_type, key_string)
        if grammar is not None:
            grammar.maybe_init_reasoning(require_reasoning)
            if grammar.grammar_stats is not None:
                grammar.grammar_stats.compilation_time = time.perf_counter() - start
        return grammar


# ------------------------------------------------------------------ which backend


class NamesBackend(Protocol):
    """The one attribute that has to be there of whoever builds a backend."""

    @property
    def grammar_backend(self) -> str | None: ...


GrammarBackendFactory = Callable[[Any, Any, int, Any], BaseGrammarBackend | None]


def register_grammar_backend(name: str, init_func: GrammarBackendFactory) -> None:
    """Makes `create_grammar_backend` call `init_func` for the name.

    A taken name, also a built-in one, warns and is replaced.
    """
    GRAMMAR_BACKEND_REGISTRY.register(name, init_func, source=source_of(init_func), replace=True)


def create_grammar_backend(
    server_args: NamesBackend,
    tokenizer: Any,
    vocab_size: int,
    eos_token_ids: set[int] | None = None,
    think_end_ids: list[int] | None = None,
) -> BaseGrammarBackend | None:
    """The backend that `server_args.grammar_backend` names; None when that is None or `none`.

    A registered function gets the first four arguments. With `server_args.reasoning_parser` and
    `think_end_ids`, a built-in backend lets a model reason before the constraint begins; what a
    plugin registers is returned as it is, and may be a `ReasonerGrammarBackend` itself.
    """
    name = server_args.grammar_backend or "none"
    if name not in GRAMMAR_BACKEND_REGISTRY:
        known = ", ".join(GRAMMAR_BACKEND_REGISTRY.names())
        hint = f": {ABSENT_BACKENDS[name]}" if name in ABSENT_BACKENDS else ""
        raise ValueError(f"Invalid grammar backend: {name} (registered: {known}){hint}")
    factory = GRAMMAR_BACKEND_REGISTRY[name]
    backend: BaseGrammarBackend | None = factory(server_args, tokenizer, vocab_size, eos_token_ids)
    if isinstance(backend, BaseGrammarBackend):
        backend.limits = GrammarLimits.of(server_args)
        is_built_in = factory.__module__.startswith(f"{__package__}.")
        if is_built_in and think_end_ids and getattr(server_args, "reasoning_parser", None):
            from sglang.srt.constrained.reasoner_grammar_backend import ReasonerGrammarBackend

            backend = ReasonerGrammarBackend(backend, think_end_ids)
    return backend


def no_backend(
    server_args: NamesBackend, tokenizer: Any, vocab_size: int, eos_token_ids: Any
) -> None:
    """`none`: requests with a constraint are refused."""
