"""Backends whose library compiles a constraint in a process of its own before it does so here."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from sglang.srt.constrained.base_grammar_backend import BaseGrammarBackend, GrammarStats
from sglang.srt.constrained.compile_process import START_SECONDS, CompileServer
from sglang.srt.constrained.constraint_text import why_refused
from sglang.srt.constrained.json_schema_rules import SchemaRules
from sglang.srt.constrained.limits import GrammarLimits
from sglang.srt.constrained.token_mask import BitmaskGrammar, TokenRows
from sglang.srt.constrained.vocabulary import TokenVocabulary

NUM_COMPILERS = 2  # processes, and threads that wait for them: more would only seem to compile
MEMORY_FACTOR = 4  # bytes while compiling, per byte of the largest result that is allowed
LEAST_MEMORY = 256 << 20  # bytes that compiling may take in any case
STACK_BYTES = 1 << 20


class Payload(msgspec.Struct, frozen=True):
    """What a compiling process has to know."""

    tokens: tuple[bytes, ...]
    end_ids: tuple[int, ...]
    compiled_bytes: int
    settings: dict[str, Any]

    @property
    def vocabulary(self) -> TokenVocabulary:
        return TokenVocabulary(self.tokens, self.end_ids)


class ProbedBackend(BaseGrammarBackend):
    """A library cannot be interrupted, and may end the process over a mistake of its own.

    So `make_compiler` of the module (see CompileServer) compiles first, where only its own process
    is at stake, and gives the text that the library took; then `_build` does the same here.
    """

    # Seconds for a process to come up, and for what is done here once it has done it in time.
    compile_grace = START_SECONDS + 30.0
    library = ""
    rules: SchemaRules

    def __init__(
        self, vocabulary: TokenVocabulary, limits: GrammarLimits, settings: dict[str, Any]
    ) -> None:
        super().__init__(NUM_COMPILERS)
        self.limits = limits
        self._rows = TokenRows.of(vocabulary)
        self._compilers = CompileServer(
            f"{type(self).__module__}:make_compiler",
            msgspec.msgpack.encode(
                Payload(vocabulary.tokens, vocabulary.end_ids, limits.compiled_bytes, settings)
            ),
            num_processes=NUM_COMPILERS,
            memory_bytes=limits.compiled_bytes * MEMORY_FACTOR + LEAST_MEMORY,
            preload=[self.library],
        )

    def check(self, key_type: str, key_string: str) -> str | None:
        return why_refused(key_type, key_string, self.rules)

    def compile_grammar(self, key_type: str, key_string: str) -> BitmaskGrammar:
        text = self._compilers.compile(key_type, key_string, self.limits.compile_seconds)
        return self._build(text.decode(), GrammarStats(dispatch_type=key_type))

    def close(self) -> None:
        self._compilers.close()
        super().close()

    def _build(self, text: str, grammar_stats: GrammarStats) -> BitmaskGrammar:
        """The grammar of a text that compiled in the process."""
        raise NotImplementedError


def payload_of(data: bytes) -> Payload:
    return msgspec.msgpack.decode(data, type=Payload)


def in_small_stack(compile_text: Callable[[str, str], bytes]) -> Callable[[str, str], bytes]:
    """Compiles with less stack than the engine's threads have: what works so works there."""

    def compile_in_thread(kind: str, text: str) -> bytes:
        threading.stack_size(STACK_BYTES)
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(compile_text, kind, text).result()

    return compile_in_thread
