"""Compiles constraints in processes that can be ended: libraries cannot be interrupted."""

import contextlib
import json
import logging
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from sglang.srt.constrained import compile_child
from sglang.srt.constrained.compile_child import (
    DONE,
    DONE_LAST,
    END,
    FORK,
    HEAD,
    NO_MEMORY,
    NUMBER,
    ORDER,
    READY,
    REFUSED,
    UNKNOWN,
)
from sglang.srt.constrained.limits import too_big_while_compiled, too_slow

logger = logging.getLogger(__name__)
START_SECONDS = 60.0  # that a compiler may take to come up: it imports a library, on a busy machine
LEAVE_SECONDS = 5.0  # that it may take to end by itself; more when it still imports
ENGINE_ENDS = "the engine ends"


class CompileRefused(ValueError):
    """The compiler says no to the constraint."""


class CompileTimeout(Exception):
    """The compilation took too long, and its process was ended."""


class CompilerDied(Exception):
    """The compilation ended its process, or needed more memory than it may have."""


class CompilerMissing(Exception):
    """There is no compiler, which says nothing about the constraint."""


class CompileServer:
    """Compiles in processes that can be ended; at most `num_processes` at once.

    `make_compiler` is "package.module:function"; function(payload) gives the compiler, which takes
    kind and text of a constraint and returns bytes. Its module and `preload`, what that imports
    later, are loaded once, in the background, by a process that then forks a compiler whenever one
    is missing. Each compiler may take `memory_bytes` beside what it has when it is made.
    """

    def __init__(
        self,
        make_compiler: str,
        payload: bytes,
        *,
        num_processes: int,
        memory_bytes: int,
        preload: Sequence[str] = (),
    ) -> None:
        self._memory_bytes = memory_bytes
        self._forks = _Forks(
            {
                "path": sys.path,
                "make_compiler": make_compiler,
                "preload": list(preload),
                "memory_bytes": memory_bytes,
            },
            payload,
        )
        self._is_closed = False
        # One place per process; None: the next compilation there starts one.
        self._places: queue.LifoQueue[_Compiler | None] = queue.LifoQueue()
        for _ in range(num_processes):
            self._places.put(None)
        threading.Thread(target=self._warm_up, name="sglang-compilers", daemon=True).start()

    def compile(self, kind: str, text: str, timeout: float) -> bytes:
        """What the compiler makes of the constraint; called in threads that may wait.

        Raises CompileRefused, CompileTimeout, CompilerDied or CompilerMissing.
        """
        place, kept = self._places.get(), None
        try:
            compiler = self._living(place)
            tag, body = self._ask(compiler, kind, text, timeout)
            if tag in (DONE, REFUSED):
                kept = compiler
            else:
                self._forks.end(compiler)
        finally:
            self._places.put(kept)
        if tag in (DONE, DONE_LAST):
            return body
        if tag == NO_MEMORY:
            raise CompilerDied(too_big_while_compiled(self._memory_bytes))
        message = body.decode(errors="replace")
        if tag == REFUSED:
            raise CompileRefused(message)
        raise CompilerDied(f"the compiler failed: {message}")

    def close(self) -> None:
        """Ends all processes. Compilations under way raise CompilerMissing."""
        self._is_closed = True
        self._forks.close()

    def _living(self, place: "_Compiler | None") -> "_Compiler":
        if self._is_closed:
            raise CompilerMissing(ENGINE_ENDS)
        # An idle compiler says nothing: what can be read is that it has ended.
        if place is not None and place.connection.poll(0):
            self._forks.end(place)
            place = None
        return self._forks.new_compiler() if place is None else place

    def _ask(
        self, compiler: "_Compiler", kind: str, text: str, timeout: float
    ) -> tuple[bytes, bytes]:
        """The compiler's answer, tag and body. If it gives none, it is ended."""
        connection = compiler.connection
        try:
            connection.send_bytes(kind.encode() + b"\0" + text.encode(errors="surrogatepass"))
            answer = connection.recv_bytes() if connection.poll(timeout) else b""
        except (EOFError, OSError) as error:
            code = self._forks.end(compiler)
            if self._is_closed:
                raise CompilerMissing(ENGINE_ENDS) from error
            if code in (UNKNOWN, -signal.SIGKILL):
                raise CompilerMissing(
                    f"its compiler was ended from outside{_how(code)}; try it again"
                ) from error
            raise CompilerDied(
                f"the compiler has ended over it{_how(code)}; it may need more memory than the "
                f"{self._memory_bytes} bytes that compiling may take, which grow with "
                "--grammar-max-compiled-bytes"
            ) from error
        if not answer:
            self._forks.end(compiler)
            raise CompileTimeout(too_slow(timeout))
        return answer[:1], answer[1:]

    def _warm_up(self) -> None:
        place, kept = self._places.get(), None
        try:
            kept = self._living(place)
        except CompilerMissing as error:
            if not self._is_closed:
                logger.warning("There is no compiler of constraints yet: %s", error)
        finally:
            self._places.put(kept)


@dataclass(frozen=True)
class _Compiler:
    """A process, the one that has forked it, and the way to it."""

    pid: int
    parent: "subprocess.Popen[bytes]"
    connection: "Connection"


class _Forks:
    """The process that forks compilers; started when it is wanted, and again if it has died."""

    def __init__(self, settings: Mapping[str, object], payload: bytes) -> None:
        self._settings = json.dumps(settings).encode()
        self._payload = payload
        self._lock = threading.Lock()
        self._is_closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def new_compiler(self) -> _Compiler:
        """Raises CompilerMissing."""
        ours, theirs = Pipe()
        with theirs, self._lock:
            parent, control = self._running()
            pid = self._order(control, FORK, fd=theirs.fileno())
        compiler = _Compiler(pid, parent, ours)
        try:
            answer = ours.recv_bytes() if ours.poll(START_SECONDS) else b""
        except (EOFError, OSError):
            answer = b""
        if answer[:1] == READY:
            return compiler
        how = _how(self.end(compiler))
        message = answer[1:].decode(errors="replace") or "it says nothing"
        raise CompilerMissing(f"the compiler does not come up{how}: {message}")

    def end(self, compiler: _Compiler) -> int:
        """Ends the process if it has not ended, and says how it did; 0: nobody knows."""
        compiler.connection.close()
        with self._lock:
            if self._process is not compiler.parent or self._control is None:
                return UNKNOWN  # it has ended with its parent
            try:
                return self._order(self._control, END, compiler.pid)
            except CompilerMissing:
                return UNKNOWN

    def close(self) -> None:
        """Also while others wait for an answer."""
        self._is_closed = True
        control = self._control
        if control is not None:
            with contextlib.suppress(OSError):
                control.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._stop()

    def _running(self) -> "tuple[subprocess.Popen[bytes], socket.socket]":
        """The process, started if there is none. Its compilers end with it, and it with us."""
        if self._is_closed:
            raise CompilerMissing(ENGINE_ENDS)
        if self._process is not None and self._process.poll() is not None:
            self._stop()
        if self._process is None or self._control is None:
            self._control, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, compile_child.__file__, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                )
            self._control.settimeout(START_SECONDS)
            head = HEAD.pack(len(self._settings), len(self._payload))
            with self._lost():
                self._control.sendall(head + self._settings + self._payload)
        return self._process, self._control

    def _order(self, control: socket.socket, operation: bytes, pid: int = 0, fd: int = -1) -> int:
        with self._lost():
            message = ORDER.pack(operation, pid)
            if fd < 0:
                control.sendall(message)
            else:
                socket.send_fds(control, [message], [fd])
            answer = control.recv(NUMBER.size)
            if not answer:
                raise ConnectionResetError("it has ended")
        return int(NUMBER.unpack(answer)[0])

    @contextlib.contextmanager
    def _lost(self) -> Iterator[None]:
        """Whoever does not answer is ended; the next compiler has a new parent."""
        try:
            yield
        except OSError as error:
            self._stop()
            why = ENGINE_ENDS if self._is_closed else f"the process that forks compilers: {error}"
            raise CompilerMissing(why) from error

    def _stop(self) -> None:
        """Ends the process and all its compilers. The lock is held."""
        process, control = self._process, self._control
        self._process = self._control = None
        if control is not None:
            control.close()
        if process is not None:
            try:
                process.wait(LEAVE_SECONDS)  # it ends its compilers first
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _how(code: int) -> str:
    if code == UNKNOWN:
        return ""
    return f" ({signal.Signals(-code).name})" if code < 0 else f" (exit code {code})"
