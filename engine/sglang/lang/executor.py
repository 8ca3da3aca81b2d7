"""The running side of a state: a worker thread, and whoever waits for it."""

import queue
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from sglang.lang.backend.base_backend import BaseBackend
from sglang.lang.chat_template import ChatTemplate, Message
from sglang.lang.execution import Execution
from sglang.lang.ir import SglCommitLazy, SglExpr, SglSamplingParams, names_in, refuse_offset


class StreamExecutor(Execution):
    """Appending returns at once; reading a variable waits.

    The first error ends the work: it is what `error()` returns, and what reading an unfinished
    variable raises.
    """

    def __init__(  # noqa: PLR0913
        self,
        backend: BaseBackend,
        arguments: Mapping[str, Any],
        default_sampling_para: SglSamplingParams,
        chat_template: ChatTemplate | None = None,
        stream: bool = False,
        num_api_spec_tokens: int | None = None,
        use_thread: bool = True,
    ) -> None:
        super().__init__(backend, default_sampling_para, chat_template, stream, num_api_spec_tokens)
        self.arguments = arguments
        self._branches: list[StreamExecutor] = []
        self._use_thread = use_thread
        self._lock = threading.Lock()  # between the queue and its end
        self._ended = False
        self._queue: queue.SimpleQueue[SglExpr | threading.Event | None] = queue.SimpleQueue()
        backend.begin_program(self)
        if use_thread:
            threading.Thread(target=self._work, name="sgl-program", daemon=True).start()

    def submit(self, expr: SglExpr) -> None:
        """Queues an expression; its variables are waited for from now on."""
        with self._lock:
            self._check_not_ended("added to")
            self.results.expect(names_in(expr))
            if self._use_thread:
                self._queue.put(expr)
                return
        if self.results.error is None:
            self._attempt(expr)
        if self.results.error is not None:
            raise self.results.error

    def sync(self) -> None:
        """Waits until all that was submitted is done or given up; does not raise, see `error()`."""
        if not self._use_thread:
            return
        reached = threading.Event()
        with self._lock:
            ended = self._ended
            if not ended:
                self._queue.put(reached)
        if ended:
            self.results.wait_finished()
        else:
            reached.wait()

    def get_var(self, name: str) -> Any:
        """Waits for the variable. Raises the error that kept it from coming."""
        if self._turn_ahead is not None and self.results.is_expected(name):
            self.sync()
            if self._collects_turn and self.results.is_expected(name):
                raise RuntimeError(
                    f"{name!r} comes at the end of the assistant's turn, because the program has "
                    "num_api_spec_tokens; read it after the turn"
                )
        return self.results.get(name)

    def set_var(self, name: str, value: Any) -> None:
        self.results.set(name, value)

    def get_meta_info(self, name: str) -> Any:
        """What the backend told besides the answer; waits as `get_var` does."""
        self.get_var(name)
        return self.results.meta.get(name)

    def text(self) -> str:
        self.sync()
        return self.text_

    def messages(self) -> list[Message]:
        self.sync()
        return self.messages_

    def error(self) -> BaseException | None:
        """What ended the work early, or None."""
        self.sync()
        return self.results.error

    def iterate(self, name: str | None) -> Iterator[str]:
        """The whole text, or a variable's, as it comes. Raises at the end what broke it off."""
        if name is not None:
            yield from self.results.pieces_of(name)
            return
        yield from self.results.pieces(lambda: self.text_, lambda: self.results.finished)
        if self.results.error is not None:
            raise self.results.error

    def fork(
        self, size: int = 1, position_ids_offset: list[int] | None = None
    ) -> "list[StreamExecutor]":
        """Independent copies. The text of several is planted in the server's cache first."""
        refuse_offset(position_ids_offset)
        size = int(size)
        if size < 1:
            raise ValueError(f"a fork needs at least 1 branch, got {size}")
        self.sync()  # the text is known from here on
        if size > 1 and self.text_ and self.results.error is None:
            self.submit(SglCommitLazy())
            self.sync()
        if self.results.error is not None:
            raise self.results.error
        if self._turn_ahead is not None and self._turn_ahead.parts:
            raise ValueError(
                "a program with num_api_spec_tokens cannot fork inside an assistant's turn, which "
                "is asked for at its end; end the turn first"
            )
        with self._lock:
            # After its end nobody would end the branches; before it, `end` finds them here.
            self._check_not_ended("forked from")
            first = len(self._branches)
            for _ in range(size):
                self._branches.append(self._branch())
            branches = self._branches[first:]
        for branch in branches:
            self.backend.fork_program(self, branch)
        return branches

    def fail(self, error: BaseException) -> None:
        """The program's own code failed."""
        self.results.fail(error)

    def end(self) -> None:
        """No more will be submitted, here and in the branches. What was is still done."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            if self._use_thread:
                self._queue.put(None)
        for branch in self._branches:
            branch.end()
        if not self._use_thread:
            self._finish()

    def _check_not_ended(self, how: str) -> None:
        if self._ended:
            raise RuntimeError(f"the program has ended; nothing can be {how} its state")

    def _branch(self) -> "StreamExecutor":
        branch = StreamExecutor(
            self.backend,
            self.arguments,
            self.default_sampling_para,
            self.chat_template,
            self.stream,
            self.num_api_spec_tokens,
            self._use_thread,
        )
        self.copy_to(branch)
        branch._scope_starts = dict(self._scope_starts)
        branch.results.values.update(self.results.values)
        branch.results.meta.update(self.results.meta)
        return branch

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
            elif self.results.error is None:
                self._attempt(item)
        self._finish()

    def _attempt(self, expr: SglExpr) -> None:
        try:
            self._execute(expr)
        except Exception as error:  # noqa: BLE001 - kept for whoever reads
            self.results.fail(error)

    def _finish(self) -> None:
        try:
            self.backend.end_request(self.sid)
            self.backend.end_program(self)
        except Exception as error:  # noqa: BLE001 - kept for whoever reads
            self.results.fail(error)
        finally:
            self.results.finish()
